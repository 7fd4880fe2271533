"""Packed handles message by message, on three tasks of ours and three of TensorFlow's: a bundle of one tensor or variable a device is one argument of a function, and each device's own
member is meant; an op gets the members stacked. The same results, places, lifetimes and codes."""
import grpc
import pytest
import tensorflow as tf
from clusters import Cluster, free_ports
from conftest import tf_server
from eager_messages import own, pb
from test_eager_raw import IDS, Server, define, numbers, proto

pytestmark = pytest.mark.asan
F, R = tf.float32, tf.TensorSpec([], tf.resource)
ANY, TWO = tf.TensorSpec(None, F), tf.TensorSpec([2], F)
N = 3
DEVICE = [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(N)]
VARIABLES, TENSORS, VALUES, ONLY, MIXED, UNEVEN, TWICE = range(50, 57)  # bundles; all but ONLY and TWICE have members on tasks 0 and 1


class Task(Server):
    def __init__(self, spec, index):
        self.spec, self.job, self.index, self.device = spec, "ps", index, DEVICE[index]
        self.channel = grpc.insecure_channel(spec["ps"][index], options=[("grpc.enable_http_proxy", 0)])

    def create(self, id, devices):
        server = own(tf.train.ServerDef(cluster=tf.train.ClusterSpec(self.spec).as_cluster_def(), job_name="ps", task_index=self.index, protocol="grpc"))
        r = self.call("CreateContext", context_id=id, keep_alive_secs=600, server_def=server, cluster_device_attributes=devices, lazy_copy_remote_function_inputs=True)
        assert isinstance(r, pb.CreateContextResponse), r
        return list(r.device_attributes)

    def must(self, id, *items):
        r = self.enqueue(id, *items)
        assert not isinstance(r, tuple), r
        return r

    def variable(self, id, op, value):
        v = self.op(op, "VarHandleOp", dtype=F)
        v.operation.attrs["shape"].shape.SetInParent()
        v.operation.attrs["shared_name"].s = b"cd2c89b7-88b7-44c8-ad83-06c2a9158347"
        self.must(id, v, self.send(op + 1000, value), self.op(op + 2000, "AssignVariableOp", (op,), (op + 1000,), dtype=F))

    def of(self, op, dtype=F):
        h = self.handle(op)
        h.dtype = dtype.as_datatype_enum
        return h


def pack(op, composite, *members):
    p = pb.SendPackedHandleOp(op_id=op, device_name=f"/job:ps/replica:0/task:0/device:COMPOSITE:{composite}")
    for m in members:
        if isinstance(m, pb.RemoteTensorHandle):
            p.handles.add().remote_handle.CopyFrom(m)
        else:
            h = p.handles.add().local_handle
            h.tensor.CopyFrom(proto(m[0]))
            h.device = m[1]
    return pb.QueueItem(send_packed_handle=p)


def on(i):
    return tf.device(DEVICE[i])


def read(r):
    x = tf.raw_ops.ReadVariableOp(resource=r, dtype=F)
    x.set_shape([])
    return x


def two_reads(r):
    with on(0):
        x = read(r)
    with on(1):
        y = read(r)
    return x, y


def sum_of_two(r):
    x, y = two_reads(r)
    return x + y * 10.0


def set_and_end(r):
    tf.raw_ops.AssignVariableOp(resource=r, value=5.0)
    return tf.constant(1.0)


def add_and_read(r):
    with tf.control_dependencies([tf.raw_ops.AssignAddVariableOp(resource=r, value=5.0)]):
        return read(r) * 1.0


def add_here_then_all(r):
    with on(0):
        a = tf.raw_ops.AssignAddVariableOp(resource=r, value=1.0)
    with tf.control_dependencies([a]):
        b = tf.raw_ops.AssignAddVariableOp(resource=r, value=100.0)
    with tf.control_dependencies([b]):
        return tf.constant(1.0)


def loop(r):
    def body(i, x):
        p, q = two_reads(r)
        return i + 1, x + p + q * 10.0

    return tf.while_loop(lambda i, x: i < 3, body, (tf.constant(0), tf.constant(0.0)))[1]


def loop_unplaced(r):
    return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x + read(r)), (tf.constant(0), tf.constant(0.0)))[1]


def apply(r, q):
    """An optimizer's op: two bundles at once."""
    tf.raw_ops.ResourceApplyMomentum(var=r, accum=q, lr=1.0, grad=1.0, momentum=0.0)
    with on(1):
        return tf.identity(1.0)


def scaled(x):
    with on(0):
        p = x * 1.0
    with on(1):
        q = x * 10.0
    return p + q


def through_identity(x):
    """The identity is on the function's device, and so is the member that both get."""
    i = tf.identity(x)
    with on(0):
        p = i * 1.0
    with on(1):
        q = i * 1.0
    return p, q


def on_third(x):
    with on(2):
        return x * 1.0


FUNCTIONS = {f.__name__: (f, spec) for spec, fs in (((R,), (two_reads, sum_of_two, set_and_end, add_and_read, add_here_then_all, loop, loop_unplaced)), ((R, R), (apply,)),
                                                    ((TWO,), (scaled, through_identity)), ((ANY,), (on_third,))) for f in fs}
FUNCTIONS.update(unplaced=(lambda r: read(r) * 1.0, (R,)), plain=(read, (R,)), double=(lambda x: x * 2.0, (ANY,)), total=(tf.reduce_sum, (ANY,)))


def registered():
    items = []
    tf.compat.v1.enable_control_flow_v2()
    try:
        for name, (f, spec) in FUNCTIONS.items():
            with tf.Graph().as_default():
                c = tf.function(f).get_concrete_function(*spec)
                d = c.function_def
                d.signature.name = name
                items.append(pb.QueueItem(register_function=pb.RegisterFunctionOp(function_def=own(d), library=own(c.graph.as_graph_def().library))))
    finally:
        tf.compat.v1.disable_control_flow_v2()
    return items


class Side:
    """Three tasks with a context, functions and bundles; what they answer."""

    def __init__(self, spec, functions):
        self.tasks, self.id, devices = [Task(spec, i) for i in range(N)], next(IDS), []
        for t in self.tasks:  # their incarnations
            first = next(IDS)
            devices += t.create(first, [])
            t.call("CloseContext", context_id=first)
        for t in self.tasks:
            t.create(self.id, devices)
        a, b, c = self.tasks
        self.next = iter(range(10000, 20000))
        for op, t, v, x in ((1, a, 1.0, [1.0, 2.0]), (2, b, 2.0, [3.0, 4.0])):
            t.variable(self.id, op, v)
            t.variable(self.id, op + 10, v * 10.0)
            t.must(self.id, t.send(op + 20, x))
        b.must(self.id, pb.QueueItem(send_tensor=pb.SendTensorOp(op_id=25, tensors=[own(tf.make_tensor_proto([1, 2]))], device_name=b.device)))
        a.must(self.id, a.send(26, [1.0, 2.0]), a.send(27, [5.0, 6.0]))
        resources = [(t.of(op, tf.resource), t.of(op + 10, tf.resource)) for t, op in ((a, 1), (b, 2))]
        for t in self.tasks:
            t.must(self.id, *functions, pack(VARIABLES, 0, *(r[0] for r in resources)), pack(VARIABLES + 100, 0, *(r[1] for r in resources)), pack(TENSORS, 0, a.of(21), b.of(22)),
                   pack(VALUES, 0, ([7.0, 8.0], DEVICE[0]), ([9.0, 1.0], DEVICE[1])), pack(ONLY, 1, b.of(22)), pack(MIXED, 0, a.of(21), b.of(25, tf.int32)),
                   pack(UNEVEN, 0, ([1.0, 2.0], DEVICE[0]), ([3.0], DEVICE[1])))
        a.must(self.id, pack(TWICE, 2, a.of(26), a.of(27)))

    def run(self, index, name, *bundles, dtype=F):
        """(task, value) of each result; an error is its code."""
        t, op = self.tasks[index], next(self.next)
        o = t.op(op, name, function=True)
        for b in bundles:
            o.operation.op_inputs.append(pb.Operation.Input(remote_handle=t.of(b, dtype)))
        r = t.enqueue(self.id, o)
        if isinstance(r, tuple):
            return r[0]
        where = [next(x for x in self.tasks if x.device == (d or t.device)) for d in r.queue_response[0].device]
        return [(x.index, numbers(x.must(self.id, x.op(-1, "Identity", (op, i), T=F)))[0][1]) for i, x in enumerate(where)]

    def neg(self, index, op):
        t = self.tasks[index]
        return numbers(t.enqueue(self.id, t.op(-1, "Neg", (op,), T=F)))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    functions = registered()
    c = Cluster(tmp_path_factory.mktemp("packed"), N, 0, 0, "trn", "tf", ())
    try:
        c.start()
        spec = {"ps": [f"127.0.0.1:{p}" for p in free_ports(N)]}
        theirs = [tf_server(spec, "ps", i) for i in range(N)]
        yield Side(c.spec, functions), Side(spec, functions), theirs
    finally:
        c.stop()


def same(both, act):
    ours, theirs = (act(s) for s in both[:2])
    assert ours == theirs
    return ours


@pytest.mark.parametrize("name", [n for n, (_, spec) in FUNCTIONS.items() if spec[0] is R])
def test_variables(both, name):
    """In a function on each of the tasks, and what the variables are then."""
    def act(s):
        return [[s.run(i, name, *([VARIABLES, VARIABLES + 100] if name == "apply" else [VARIABLES]), dtype=tf.resource), s.run(i, "two_reads", VARIABLES, dtype=tf.resource)] for i in range(N)]

    got = same(both, act)
    if name in ("unplaced", "plain", "add_and_read", "loop_unplaced"):  # the third task is none of the bundle's
        assert [isinstance(g[0], list) for g in got] == [True, True, False] and got[2][0] == "INVALID_ARGUMENT"
    else:
        assert all(isinstance(g[0], list) for g in got)


@pytest.mark.parametrize("name", [n for n, (_, spec) in FUNCTIONS.items() if spec[0] is not R])
def test_tensors(both, name):
    bundles = [TENSORS, VALUES, MIXED, UNEVEN] + ([ONLY] if FUNCTIONS[name][1] == (ANY,) else [])
    got = same(both, lambda s: [[s.run(i, name, b) for b in bundles] for i in range(N)])
    if name == "scaled":
        assert got[2] == [[(2, [[31.0, 42.0]])], [(2, [[97.0, 18.0]])], "INVALID_ARGUMENT", [(2, [[31.0, 32.0]])]]
    if name == "double":  # on the third task: all of them, stacked
        assert got[0][0] == [(0, [[2.0, 4.0]])] and got[2][0] == [(2, [[[2.0, 4.0], [6.0, 8.0]]])]


def test_twice_on_a_device(both):
    assert same(both, lambda s: [s.run(0, "double", TWICE), s.neg(0, TWICE)])[0] == [(0, [[2.0, 4.0]])]


def test_ops_get_them_stacked(both):
    got = same(both, lambda s: [[s.neg(i, b) for b in (TENSORS, VALUES, ONLY, MIXED, UNEVEN)] for i in range(N)])
    assert got[1][0][0][1] == [[[-1.0, -2.0], [-3.0, -4.0]]] and got[1][2][0][1] == [[[-3.0, -4.0]]] and got[1][3:] == ["INVALID_ARGUMENT"] * 2
    # A resource has one place. TensorFlow's first task, which the composite device is called after, says NOT_FOUND.
    got = [[t.enqueue(s.id, t.op(-1, "ReadVariableOp", (VARIABLES,), dtype=F))[0] for t in s.tasks] for s in both[:2]]
    assert got[0][1:] == got[1][1:] == ["INVALID_ARGUMENT"] * 2 and got[0][0] == "INVALID_ARGUMENT"


def test_component_functions_get_their_own(both):
    part = pb.QueueItem(register_function=pb.RegisterFunctionOp(function_def=define("part", lambda x: {"y": x * 3.0}, TWO), is_component_function=True))

    def act(s):
        got = []
        for t in s.tasks[:2]:
            t.must(s.id, part)
            r = t.call("RunComponentFunction", context_id=s.id, operation=t.op(900, "part", (TENSORS,), function=True, step=77).operation, output_num=[0])
            assert not isinstance(r, tuple), r
            got.append(numbers(t.must(s.id, t.op(-1, "Identity", (900, 0), T=F), pb.QueueItem(cleanup_function=pb.CleanupFunctionOp(step_id=77))))[0])
        return got

    assert same(both, act)[1][1] == [[9.0, 12.0]]


NOBODY = "/job:nobody/replica:0/task:0/device:CPU:0"


@pytest.mark.parametrize("handle,words", [
    (([1.0], NOBODY), "unknown device"), (([1.0], "nonsense"), "unknown device"), (([1.0], "/job:ps/task:1"), "unknown device"), (([1.0], DEVICE[0].replace("CPU", "GPU")), "unknown device"),
    (([1.0], ""), None), (([1.0], "CPU:0"), None), (([1.0], "/device:CPU:0"), None),
    (pb.RemoteTensorHandle(op_id=21, device=NOBODY, dtype=1), "unknown device"), (pb.RemoteTensorHandle(op_id=7777, device=DEVICE[0], dtype=1), "Unable to find the relevant tensor"),
    (pb.RemoteTensorHandle(op_id=7777, device=DEVICE[1], dtype=1), None), (pb.RemoteTensorHandle(op_id=21, device=DEVICE[0], dtype=1), None),
    (pb.RemoteTensorHandle(op_id=TENSORS, device=DEVICE[0], dtype=1), None)])
def test_what_can_be_packed(both, handle, words):
    """Another task's handles are not looked up before they are used; nor are bundles of bundles."""
    ours, theirs = (s.tasks[0].enqueue(s.id, pack(800, 3, handle)) for s in both[:2])
    assert numbers(ours) == numbers(theirs), (ours, theirs)
    assert not words or (words in ours[1] and words in theirs[1]), (ours, theirs)
    assert isinstance(ours, tuple) == bool(words)


def test_used_though_lost(both):
    """A member that its task does not have, and a bundle in a bundle: INVALID_ARGUMENT when something takes it."""
    def act(s):
        a, b, _ = s.tasks
        a.must(s.id, pack(810, 0, a.of(21), b.of(7777)), pack(811, 0, a.of(TENSORS), b.of(22)))
        return [s.run(0, "double", 810), s.run(0, "scaled", 810), s.neg(0, 810), s.run(0, "scaled", 811)]

    assert same(both, act) == [[(0, [[2.0, 4.0]])]] + ["INVALID_ARGUMENT"] * 3


def test_lifetimes(both):
    """A bundle holds the members of its own task, not those of others; it goes with its own handle, once."""
    def act(s):
        a, b, _ = s.tasks
        a.must(s.id, a.send(820, [1.0, 2.0]))
        b.must(s.id, b.send(821, [5.0, 6.0]))
        a.must(s.id, pack(822, 0, a.of(820), b.of(821)), a.drop(820))
        got = [s.run(0, "scaled", 822), numbers(a.enqueue(s.id, a.op(-1, "Neg", (820,), T=F)))]
        b.must(s.id, b.drop(821))
        got += [s.run(0, "scaled", 822), s.run(0, "double", 822)]
        a.must(s.id, a.drop(822))
        return got + [s.run(0, "double", 822), numbers(a.enqueue(s.id, a.drop(822)))]

    bad = "INVALID_ARGUMENT"
    assert same(both, act) == [[(0, [[51.0, 62.0]])], bad, bad, [(0, [[2.0, 4.0]])], bad, bad]


def test_handle_names(both):
    """A bundle is its task's; it has no second output."""
    def act(s):
        a, got = s.tasks[0], []
        for device, op_device in ((DEVICE[0], ""), ("", DEVICE[0])):
            o = a.op(next(s.next), "scaled", function=True)
            o.operation.op_inputs.append(pb.Operation.Input(remote_handle=pb.RemoteTensorHandle(op_id=TENSORS, device=device, op_device=op_device, dtype=1)))
            got.append(numbers(a.enqueue(s.id, o)))
        h = a.of(TENSORS)
        h.output_num = 1
        o = a.op(next(s.next), "scaled", function=True)
        o.operation.op_inputs.append(pb.Operation.Input(remote_handle=h))
        return got + [numbers(a.enqueue(s.id, o))]

    assert same(both, act)[2] == "INVALID_ARGUMENT"
