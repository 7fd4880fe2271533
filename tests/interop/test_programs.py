"""Programs that people have: what they do and the errors they rely on, on a cluster of ours with the real TensorFlow as the client."""
import json
import signal
import subprocess
import threading
import time
import urllib.request

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import timeline

from conftest import BIN, tf_server

W0, W1, P0, P1 = "/job:worker/task:0", "/job:worker/task:1", "/job:ps/task:0", "/job:ps/task:1"


def session(c, job="worker", index=0, **config):
    config.setdefault("operation_timeout_in_ms", 30000)
    return tf.Session(c.target(job, index), config=tf.ConfigProto(**config))


class Thread(threading.Thread):
    """Gives its function's result, or raises what it raised."""

    def __init__(self, f, *args):
        super().__init__(daemon=True)
        self.f, self.args, self.error, self.value = f, args, None, None
        self.start()

    def run(self):
        try:
            self.value = self.f(*self.args)
        except BaseException as e:
            self.error = e

    def result(self, seconds=30):
        self.join(seconds)
        assert not self.is_alive(), "still busy"
        if self.error:
            raise self.error
        return self.value


# ---- training loops

@pytest.mark.asan
@pytest.mark.parametrize("resource", [False, True])
def test_monitored_counter(fresh, resource):
    """A chief and a worker count through MonitoredTrainingSession."""
    steps = 30

    def build(index):
        setter = tf.train.replica_device_setter(cluster=fresh.spec, worker_device=f"/job:worker/task:{index}")
        with tf.device(setter), tf.variable_scope("", use_resource=resource):
            step = tf.train.get_or_create_global_step()
            a = tf.get_variable("a", [4], initializer=tf.ones_initializer())
            loss = tf.reduce_sum(a)
            up = tf.group(a.assign_add(tf.ones([4]), use_locking=True), step.assign_add(1, use_locking=True))
        return step, a, loss, up

    def train(index, chief_is_up):
        with tf.Graph().as_default():
            step, a, loss, up = build(index)
            with tf.train.MonitoredTrainingSession(fresh.target("worker", index), is_chief=index == 0) as s:
                chief_is_up.set()
                for _ in range(steps):
                    s.run([loss, up])
                done.wait(30)
                return s.run([step, a])

    up, done = threading.Event(), threading.Barrier(2)
    chief = Thread(train, 0, up)
    while not up.wait(0.1):
        assert chief.is_alive() or chief.result()
    worker = Thread(train, 1, up)
    for t in (chief, worker):
        step, a = t.result()
        assert step == 2 * steps and list(a) == [2 * steps + 1] * 4


def test_stop_at_step(fresh):
    """Hooks see the global step and end the loop."""
    with tf.device(P0):
        up = tf.train.get_or_create_global_step().assign_add(1)
    losses = []
    hook = tf.train.StopAtStepHook(last_step=7)
    with tf.train.MonitoredTrainingSession(fresh.target(), hooks=[hook]) as s:
        while not s.should_stop():
            losses.append(s.run(up))
    assert losses == [1, 2, 3, 4, 5, 6, 7]


# ---- servers of their own

def test_hello_local():
    """The first lines of every tutorial, on `trainera local` as on a task of its own."""
    p = subprocess.Popen([BIN, "local", "--ps=0", "--workers=1"], stdout=subprocess.PIPE, text=True)
    try:
        job, index, target = p.stdout.readline().split()
        assert (job, index) == ("worker", "0")
        with tf.Session(target) as s:
            assert s.run(tf.constant("Hello, distributed TensorFlow!")) == b"Hello, distributed TensorFlow!"
    finally:
        p.send_signal(signal.SIGTERM)
        p.stdout.close()
        assert p.wait(20) == 0


def test_cluster_propagation(cluster):
    """Two tasks that know nothing of each other become a cluster by ConfigProto.cluster_def."""
    a, b = cluster(ps=0), cluster(ps=0)
    config = tf.ConfigProto(operation_timeout_in_ms=30000)
    job = config.cluster_def.job.add(name="both")
    job.tasks[0], job.tasks[1] = a.spec["worker"][0], b.spec["worker"][0]
    with tf.device("/job:both/task:1"):
        v = tf.get_variable("v", initializer=[1.0, 2.0], use_resource=True)
    with tf.device("/job:both/task:0"):
        out = v * 3.0
    with tf.Session(a.target(), config=config) as s:
        s.run(v.initializer)
        assert list(s.run(out)) == [3.0, 6.0]
        assert {d.name for d in s.list_devices()} == {f"/job:both/replica:0/task:{i}/device:CPU:0" for i in range(2)}


def test_fetched_constants_come_from_their_task(cluster):
    """Even one that was folded runs where it was placed, so that a fetch tells whether that task still knows the session."""
    a, b, c = cluster(ps=0), cluster(ps=0), cluster(ps=0)

    def session_on(master):
        config = tf.ConfigProto(operation_timeout_in_ms=30000)
        config.cluster_def.job.add(name="master").tasks[0] = master.spec["worker"][0]
        config.cluster_def.job.add(name="worker").tasks[0] = b.spec["worker"][0]
        return tf.Session(master.target(), config=config)

    with tf.device("/job:worker/task:0"):
        x = tf.constant([1.0], name="x")
        y = x + x
    old = session_on(a)
    meta = tf.RunMetadata()
    assert list(old.run(x, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=meta)) == [1.0]
    assert "x" in [n.node_name for d in meta.step_stats.dev_stats for n in d.node_stats if d.device.startswith("/job:worker")]
    assert list(old.run(y)) == [2.0]
    with session_on(c) as new:  # the same task name, another life: the worker forgets the first one's sessions
        assert list(new.run(y)) == [2.0]
        with pytest.raises(tf.errors.AbortedError, match="Session handle is not found"):
            old.run(y)
    old.close()


def test_device_filters(cluster):
    """With filters, a session neither waits for the tasks that it does not use nor sees their devices."""
    c = cluster(ps=1, workers=2, start=False)
    c.task("ps").start()
    c.task("worker", 0).start()
    with tf.device(P0):
        v = tf.get_variable("v", initializer=5, use_resource=True)
    with session(c, device_filters=["/job:ps", "/job:worker/task:0"]) as s:
        s.run(v.initializer)
        assert s.run(v) == 5
        assert sorted(d.name for d in s.list_devices()) == ["/job:ps/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:0/device:CPU:0"]
    with tf.device(W1):
        far = tf.constant(1)
    with session(c, device_filters=["/job:ps", "/job:worker/task:0"]) as s, pytest.raises(tf.errors.InvalidArgumentError, match="task:1"):
        s.run(far)


# ---- what sessions share

@pytest.mark.asan
def test_shared_queue(fresh):
    """A queue with a shared_name is one queue for all sessions: a blocked dequeue of one gets what the other enqueues."""
    def end(index):
        g = tf.Graph()
        with g.as_default(), tf.device(P0):
            q = tf.FIFOQueue(10, [tf.int32, tf.string], shapes=[[], [2]], shared_name="shared", name=f"mine{index}")
            x, y = tf.placeholder(tf.int32, []), tf.placeholder(tf.string, [2])
            return x, y, q.enqueue([x, y]), q.dequeue(), q.size(), q.close(), tf.Session(fresh.target("worker", index), graph=g)

    x, y, put, _, size, close, s0 = end(0)
    _, _, _, take, _, _, s1 = end(1)
    with s0, s1:
        waiting = Thread(s1.run, take)
        time.sleep(0.2)
        s0.run(put, {x: 7, y: ["a", b"\0\xff"]})
        got = waiting.result()
        assert got[0] == 7 and list(got[1]) == [b"a", b"\0\xff"]
        for i in range(3):
            s0.run(put, {x: i, y: ["", ""]})
        assert s0.run(size) == 3
        assert [s1.run(take)[0] for _ in range(3)] == [0, 1, 2]
        s0.run(close)
        with pytest.raises(tf.errors.OutOfRangeError, match="is closed and has insufficient elements"):
            s1.run(take)


@pytest.mark.parametrize("ps_kind", ["ours", "TensorFlow"])
def test_done_queue(cluster, ps_kind):
    """Every ps waits on a queue of its own, through itself as the master, until every worker has said that it is done."""
    c = cluster(ps=2, workers=2, start=ps_kind == "ours")
    targets = [c.target("ps", i) for i in range(2)]
    if ps_kind != "ours":
        targets = [tf_server(c.spec, "ps", i).target for i in range(2)]
        for t in c.tasks:
            if t.job == "worker":
                t.start()

    def queue(i):
        with tf.device(f"/job:ps/task:{i}"):
            return tf.FIFOQueue(2, tf.int32, shared_name=f"done_queue{i}")

    def ps(i):
        with tf.Graph().as_default():
            take = queue(i).dequeue()
            with tf.Session(targets[i]) as s:
                return sorted(s.run(take) for _ in range(2))

    def worker(i):
        with tf.Graph().as_default():
            with session(c, index=i) as s:
                s.run([queue(k).enqueue(i) for k in range(2)])

    waiting = [Thread(ps, i) for i in range(2)]
    for t in [Thread(worker, i) for i in range(2)]:
        t.result()
    assert [t.result() for t in waiting] == [[0, 1], [0, 1]]


@pytest.mark.parametrize("resource", [False, True])
def test_variables_by_name(fresh, resource):
    """Two graphs, two masters, one name: one variable. reset clears it, or only the container that it names."""
    def graph():
        with tf.device(P1):
            v = tf.get_variable("same", initializer=[1.0, 2.0], use_resource=resource)
            with tf.container("box"):
                w = tf.get_variable("boxed", initializer=1, use_resource=resource)
        return v, w

    v, w = graph()
    with session(fresh) as s:
        s.run([v.initializer, w.initializer])
        s.run([v.assign_add([1.0, 1.0]), w.assign_add(4)])
        with tf.Graph().as_default():
            v2, w2 = graph()
            with session(fresh, index=1) as s2:
                assert list(s2.run(v2)) == [2.0, 3.0] and s2.run(w2) == 5
                s2.run(v2.assign([7.0, 7.0]))
        assert list(s.run(v)) == [7.0, 7.0]
    tf.Session.reset(fresh.target(), ["box"])
    with session(fresh) as s:
        assert list(s.run(v)) == [7.0, 7.0]
        with pytest.raises(tf.errors.FailedPreconditionError, match="boxed"):
            s.run(w)
    tf.Session.reset(fresh.target())
    with session(fresh, index=1) as s, pytest.raises(tf.errors.FailedPreconditionError, match="same"):
        s.run(v)


def test_isolated(fresh):
    """isolate_session_state: a session's variables are its own, and end with it."""
    with tf.device(P0):
        v = tf.get_variable("v", initializer=1, use_resource=True)
        r = tf.get_variable("r", initializer=1, use_resource=False)
    with session(fresh) as plain, session(fresh, isolate_session_state=True) as a, session(fresh, isolate_session_state=True) as b:
        for s, n in ((plain, 1), (a, 2), (b, 3)):
            s.run([v.initializer, r.initializer])
            s.run([v.assign_add(n), r.assign_add(10 * n)])
        assert [s.run([v, r]) for s in (plain, a, b)] == [[2, 11], [3, 21], [4, 31]]
    with session(fresh, isolate_session_state=True) as s, pytest.raises(tf.errors.FailedPreconditionError):
        s.run(v)


# ---- running

DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.bool, tf.complex64, tf.complex128, tf.string]


def sample(dtype, shape, seed):
    rng = np.random.RandomState(seed)
    if dtype == tf.string:
        return np.array([rng.bytes(i % 40) for i in range(int(np.prod(shape)))], object).reshape(shape)
    raw = np.asarray(rng.randint(0, 2 if dtype == tf.bool else 127, shape)) * (1 + 2j if dtype.is_complex else 1)
    return np.asarray(raw, dtype.as_numpy_dtype)


@pytest.mark.asan
def test_dtypes(fresh):
    """Every dtype goes in, to a ps, and out again unchanged, for scalars, empty and large tensors."""
    feeds, fetches = {}, []
    for dtype in DTYPES:
        for k, shape in enumerate([(), (0,), (3, 0, 2), (2, 3), (7, 5000)]):
            p = tf.placeholder(dtype, shape)
            feeds[p] = sample(dtype, shape, k)
            with tf.device(P1):
                there = tf.identity(p)
            fetches.append((p, tf.identity(there)))
    with session(fresh) as s:
        for (p, _), got in zip(fetches, s.run([f for _, f in fetches], feeds)):
            want = feeds[p]
            got = np.asarray(got, want.dtype if p.dtype == tf.string else None)
            assert got.dtype == want.dtype and got.shape == want.shape, p.dtype
            assert got.tolist() == want.tolist() if p.dtype == tf.string else np.array_equal(got, want), p.dtype


def test_large(fresh):
    big = np.arange(6_000_000, dtype=np.float64)  # 48 MB
    p = tf.placeholder(tf.float64, [None])
    with tf.device(P0):
        out = tf.identity(p)
    with session(fresh) as s:
        assert np.array_equal(s.run(out, {p: big}), big)


def test_feed_and_fetch_forms(fresh):
    """A fed node is not run; a fetch may be fed; the same fetch twice; fetches that are only targets."""
    with tf.device(P0):
        a = tf.constant(2.0, name="a")
        b = tf.multiply(a, 3.0, name="b")
    with session(fresh) as s:
        assert s.run(b) == 6.0
        assert s.run([b, b, {"x": a}]) == [6.0, 6.0, {"x": 2.0}]
        assert s.run([a, b], {b: 1.0}) == [2.0, 1.0]
        assert s.run(b.op) is None
        call = s.make_callable(b, [a])
        assert [call(x) for x in (1.0, 5.0)] == [3.0, 15.0]
        c = tf.add(b, 1.0)  # extends the session
        assert s.run(c) == 7.0


@pytest.mark.asan
def test_partial_run(fresh):
    a, b, c = (tf.placeholder(tf.float32, []) for _ in range(3))
    with tf.device(P0):
        r1 = tf.add(a, b)
    with tf.device(P1):
        r2 = tf.multiply(r1, c)
    with session(fresh) as s:
        for x in (1.0, 2.0):
            h = s.partial_run_setup([r1, r2], [a, b, c])
            assert s.partial_run(h, r1, {a: x, b: 2.0}) == x + 2.0
            assert s.partial_run(h, r2, {c: 10.0}) == (x + 2.0) * 10.0
        h = s.partial_run_setup([r1], [a, b])
        with pytest.raises(tf.errors.InvalidArgumentError):
            s.partial_run(h, r2, {c: 1.0})


@pytest.mark.parametrize("master", ["ours", "TensorFlow"])
def test_partial_run_masters(cluster, master):
    """Feeds and fetches of a partial run on three tasks; TensorFlow's master sends our ps partial RunGraph calls, part of which have no feed."""
    c = cluster(ps=2, workers=1, start=False)
    target = c.target("worker") if master == "ours" else tf_server(c.spec, "worker").target
    for t in c.tasks:
        if t.job == "ps" or master == "ours":
            t.start()
    with tf.device(P0):
        a, b = (tf.placeholder(tf.float32, [], name=n) for n in "ab")
        v = tf.get_variable("v", initializer=1.0, use_resource=True)
        r1 = tf.add(a, b, name="r1")
        with tf.control_dependencies([v.assign_add(r1)]):
            now = v.read_value()
    with tf.device(P1):
        c3 = tf.placeholder(tf.float32, [], name="c3")
        r2 = tf.multiply(r1, c3, name="r2")
        far = tf.gather(tf.fill([2], c3), tf.cast(c3, tf.int32) + 5, name="far_out")
    with tf.device(W0):
        r3 = tf.add(r2, now, name="r3")
    with tf.Session(target, config=tf.ConfigProto(operation_timeout_in_ms=30000)) as s:
        s.run(v.initializer)
        total = 1.0
        for x in (1.0, 2.0, 3.0):
            h = s.partial_run_setup([r1, r2, r3, now], [a, b, c3])
            assert s.partial_run(h, r1, {a: x, b: 2.0}) == x + 2.0
            total += x + 2.0
            assert s.partial_run(h, now) == total
            assert s.partial_run(h, [r2, r3], {c3: 10.0}) == [(x + 2.0) * 10.0, (x + 2.0) * 10.0 + total]
        if master == "TensorFlow":  # the initialiser, and three calls per run: its master asks again for every part of a step
            with urllib.request.urlopen(f"http://{c.spec['ps'][0]}/metrics") as page:
                assert 'trainera_rpc_calls_total{method="RunGraph"} 10\n' in page.read().decode()
        # Two at the same time, one of which is given up.
        h1, h2 = (s.partial_run_setup([r1, r2], [a, b, c3]) for _ in range(2))
        assert s.partial_run(h1, r1, {a: 1.0, b: 1.0}) == 2.0
        assert s.partial_run(h2, r1, {a: 5.0, b: 5.0}) == 10.0
        assert s.partial_run(h1, r2, {c3: 3.0}) == 6.0
        # An error in the middle ends that run and nothing else.
        h = s.partial_run_setup([r1, far], [a, b, c3])
        assert s.partial_run(h, r1, {a: 1.0, b: 2.0}) == 3.0
        with pytest.raises(tf.errors.InvalidArgumentError, match="far_out"):
            s.partial_run(h, far, {c3: 1.0})
        assert s.run(r2, {a: 1.0, b: 2.0, c3: 3.0}) == 9.0


@pytest.mark.parametrize("master", ["ours", "TensorFlow"])
def test_connected_callable(cluster, master):
    """A callable may feed one tensor with another one (CallableOptions.tensor_connection)."""
    c = cluster(ps=1, workers=1, start=False)
    target = c.target("worker") if master == "ours" else tf_server(c.spec, "worker").target
    for t in c.tasks:
        if t.job == "ps" or master == "ours":
            t.start()
    with tf.device(P0):
        x = tf.placeholder(tf.float32, [2], name="x")
        y = tf.placeholder(tf.float32, [2], name="y")
        double = tf.multiply(x, 2.0, name="double")
    with tf.device(W0):
        sums = tf.add(y, 1.0, name="sums")
        with tf.control_dependencies([y]):
            after = tf.identity(x, name="after")

    def options(feed, fetch, *joins):
        o = config_pb2.CallableOptions()
        o.feed.extend(feed)
        o.fetch.extend(fetch)
        for a, b in joins:
            o.tensor_connection.add(from_tensor=a, to_tensor=b)
        return o

    with tf.Session(target, config=tf.ConfigProto(operation_timeout_in_ms=30000)) as s:
        def call(feed, fetch, *joins):
            values = s._make_callable_from_options(options([n for n, _ in feed], fetch, *joins))(*(np.array(v, np.float32) for _, v in feed))
            return [v.tolist() for v in values]

        one = [("x:0", [1, 2])]
        for _ in range(2):
            assert call(one, ["sums:0"], ("double:0", "y:0")) == [[3, 5]]
            assert call(one, ["sums:0", "after:0"], ("double:0", "y:0")) == [[3, 5], [1, 2]]
            assert call([("x:0", [1, 2]), ("y:0", [0, 0])], ["sums:0"]) == [[1, 1]]
        for joins, why in ([("nobody:0", "y:0")], "unknown node"), ([("double:7", "y:0")], "unknown edge"):
            with pytest.raises(tf.errors.InvalidArgumentError, match=why):
                call(one, ["sums:0"], *joins)
        with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.NotFoundError)):
            call(one, ["sums:0"], ("double:0", "nobody:0"))
        if master == "ours":  # TensorFlow's master does not look
            with pytest.raises(tf.errors.InvalidArgumentError, match="cycle"):
                call([], ["sums:0"], ("sums:0", "y:0"))
        assert s.run(sums, {y: [1, 1]}).tolist() == [2, 2]


def test_trace(fresh):
    """RunMetadata has what a timeline is drawn from, and the partitions when they are asked for."""
    with tf.device(P0):
        v = tf.get_variable("v", initializer=tf.ones([10]), use_resource=True)
        up = v.assign_add(tf.ones([10]), name="up")
        big = tf.random_uniform([200, 200])
        many = [tf.matmul(big, big + i, name=f"product{i}") for i in range(8)]
    with tf.device(W0):
        out = tf.add(up, 1.0, name="out")
    with session(fresh) as s:
        s.run([v.initializer, many])
        meta = tf.RunMetadata()
        s.run([out, many], options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True), run_metadata=meta)
    events = json.loads(timeline.Timeline(meta.step_stats).generate_chrome_trace_format())["traceEvents"]
    names = {e["args"]["name"] for e in events if e.get("ph") == "X" and "args" in e}
    assert "up" in names and "out" in names, names
    assert len(meta.partition_graphs) == 2
    nodes = {n.node_name: n for d in meta.step_stats.dev_stats for n in d.node_stats}
    assert all(n.scheduled_micros <= n.all_start_micros for n in nodes.values())
    products = [nodes[f"product{i}"] for i in range(8)]
    assert sum(n.scheduled_micros < n.all_start_micros for n in products) > 0, "eight products on few threads, and none waited"
    devices = {d.device for d in meta.step_stats.dev_stats}
    assert any(d.startswith("/job:ps/") for d in devices) and any(d.startswith("/job:worker/") for d in devices)


def test_devices(fresh):
    with session(fresh) as s:
        devices = s.list_devices()
    assert sorted(d.name for d in devices) == [f"/job:{j}/replica:0/task:{i}/device:CPU:0" for j in ("ps", "worker") for i in range(2)]
    assert {d.device_type for d in devices} == {"CPU"} and len({d.incarnation for d in devices}) == 4


# ---- errors

@pytest.mark.parametrize("device", [W0, P1])
@pytest.mark.parametrize("resource", [False, True])
def test_uninitialised(fresh, resource, device):
    with tf.device(device):
        v = tf.get_variable("never_set", initializer=1.0, use_resource=resource)
        out = tf.identity(v)
    with session(fresh) as s:
        for _ in range(2):
            with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized value never_set" if not resource else "never_set"):
                s.run(out)
        assert s.run(tf.report_uninitialized_variables()).tolist() == [b"never_set"]
        s.run(v.initializer)
        assert s.run(tf.report_uninitialized_variables()).tolist() == []
        assert s.run(out) == 1.0


@pytest.mark.asan
@pytest.mark.parametrize("device", [W0, P1])
def test_failing_op(fresh, device):
    """The error has the op's code, its words and its name, whichever task it failed on, and hurts no other step."""
    x, n = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.int32, [None])
    with tf.device(device):
        bad = tf.reshape(x, n, name="does_not_fit")
        pick = tf.gather(x, n, name="far_out")
    with tf.device(P0):
        total = tf.identity(bad) + 1.0
    with session(fresh) as s:
        with pytest.raises(tf.errors.InvalidArgumentError, match="Input to reshape is a tensor with 6 values, but the requested shape has 4") as e:
            s.run(total, {x: np.ones(6), n: [2, 2]})
        assert e.value.op is bad.op and "node does_not_fit" in str(e.value)  # the braces are gone where the client put the source line
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[1\] = 9 is not in \[0, 6\)") as e:
            s.run(pick, {x: np.ones(6), n: [0, 9]})
        assert "far_out" in str(e.value)
        assert s.run(total, {x: np.ones(4), n: [2, 2]}).tolist() == [[2.0, 2.0]] * 2


def test_wrong_calls(fresh):
    """Misuse that only the server can see."""
    p = tf.placeholder(tf.float32, [], name="must_be_fed")
    out = p + 1.0
    with session(fresh) as s:
        with pytest.raises(tf.errors.InvalidArgumentError, match="must_be_fed"):
            s.run(out)
        assert s.run(out, {p: 1.0}) == 2.0
    with tf.device("/job:nowhere"):
        far = tf.constant(1.0, name="far")
    with session(fresh) as s, pytest.raises(tf.errors.InvalidArgumentError, match="far.*available devices"):
        s.run(far)


def test_unknown_op(fresh):
    with tf.device(P0):
        out = tf.raw_ops.QuantizedRelu(features=tf.bitcast(tf.constant([1], tf.uint8), tf.quint8), min_features=0.0, max_features=1.0, name="small")
    with session(fresh) as s:
        with pytest.raises(tf.errors.UnimplementedError, match="QuantizedRelu") as e:
            s.run(out.max_activations)
        assert "small" in str(e.value)


@pytest.mark.asan
@pytest.mark.parametrize("device", [W0, P0])
def test_timeouts(fresh, device):
    """A step that takes too long ends in time, on every task, and leaves the queue as it was."""
    with tf.device(device):
        q = tf.FIFOQueue(4, tf.int32, shapes=[[]], shared_name="empty")
        take, put = q.dequeue(), q.enqueue(3)
    with session(fresh) as s:
        start = time.monotonic()
        with pytest.raises(tf.errors.DeadlineExceededError):
            s.run(take, options=tf.RunOptions(timeout_in_ms=200))
        with session(fresh, operation_timeout_in_ms=1000) as s2, pytest.raises(tf.errors.DeadlineExceededError):
            s2.run(take)
        assert time.monotonic() - start < 6
        s.run(put)
        assert s.run(take) == 3


@pytest.mark.asan
@pytest.mark.parametrize("device", [W0, P0])
def test_close_under_dequeue(fresh, device):
    with tf.device(device):
        q = tf.FIFOQueue(4, tf.int32, shapes=[[]], shared_name="blocked")
        take, size = q.dequeue(), q.size()
    with session(fresh) as other:
        s = session(fresh)
        s.run(size)
        waiting = Thread(s.run, take)
        time.sleep(0.3)
        start = time.monotonic()
        s.close()
        with pytest.raises(tf.errors.CancelledError):
            waiting.result(10)
        assert time.monotonic() - start < 3
        other.run(q.enqueue(1))
        assert other.run(size) == 1  # nobody waits there any more
