"""Tasks come late, die, come back, are told to go, and are talked to by strangers: the others go on."""
import os
import random
import re
import signal
import socket
import struct
import threading
import time
import urllib.request

import pytest
import tensorflow.compat.v1 as tf

from conftest import SANITIZED, tensorflow_1, tf_server

COMPARES = False

P0, P1 = "/job:ps/task:0", "/job:ps/task:1"
LOST = (tf.errors.AbortedError, tf.errors.UnavailableError)


def session(c, index=0, **config):
    config.setdefault("operation_timeout_in_ms", 30000)
    return tf.Session(c.target("worker", index), config=tf.ConfigProto(**config))


def background(f, *args):
    """Runs it on a thread that has the same graph. Gives the thread and the list that receives its result or its error."""
    graph, out = tf.get_default_graph(), []

    def run():
        with graph.as_default():
            try:
                out.append(f(*args))
            except tf.errors.OpError as e:
                out.append(e)

    t = threading.Thread(target=run, daemon=True)
    t.start()
    return t, out


def counter(device=P0, resource=True):
    with tf.device(device):
        v = tf.get_variable("counter", [], tf.int64, initializer=tf.zeros_initializer(), use_resource=resource)
        return v, v.assign_add(1, use_locking=True)


def until(seconds, f):
    """f() until it does not raise what a lost task gives."""
    end = time.monotonic() + seconds
    while True:
        try:
            return f()
        except LOST:
            assert time.monotonic() < end, "still lost"
            time.sleep(0.1)


@pytest.mark.asan
def test_worker_first(cluster):
    """A worker that is asked before its ps is there waits for it."""
    c = cluster(ps=2, start=False)
    c.task("worker").start()
    c.task("ps", 1).start()
    v, up = counter()

    def work():
        with session(c) as s:
            s.run(v.initializer)
            return s.run(up)

    t, got = background(work)
    time.sleep(1.5)
    assert t.is_alive() and not got
    start = time.monotonic()
    c.task("ps", 0).start()
    t.join(20)
    assert got == [1]
    assert time.monotonic() - start < 12


@pytest.mark.asan
@pytest.mark.parametrize("resource", [False, True])
def test_ps_restarts(cluster, resource):
    """Steps that need the lost ps fail at once with what recoverable sessions look for; a new session finds the new one, empty."""
    c = cluster(ps=2)
    v, up = counter(P1, resource)
    q = tf.FIFOQueue(1, tf.int32, shared_name="q")
    with tf.device(P1):
        far = tf.FIFOQueue(1, tf.int32, shared_name="far")
        take = far.dequeue()
    s = session(c)
    s.run(v.initializer)
    assert [s.run(up) for _ in range(5)] == [1, 2, 3, 4, 5]
    t, errors = background(s.run, take)
    time.sleep(0.3)
    start = time.monotonic()
    c.task("ps", 1).kill()
    t.join(10)
    assert len(errors) == 1 and isinstance(errors[0], LOST), errors
    with pytest.raises(LOST):
        s.run(up)
    assert time.monotonic() - start < 8
    s.run(q.enqueue(1))  # what does not need it goes on
    c.task("ps", 1).start()
    empty = tf.errors.NotFoundError if resource else tf.errors.FailedPreconditionError
    with pytest.raises(LOST + (empty,)):
        s.run(up)  # registered with the old one
    s.close()

    def again():
        with session(c) as s:
            with pytest.raises(empty, match="counter"):
                s.run(up)
            s.run(v.initializer)
            return s.run(up)

    assert until(15, again) == 1


def test_ps_restarts_under_tensorflow(cluster):
    """The same with a TensorFlow worker as the master: it tells the new incarnation of the ps from the old, and recovers."""
    c = cluster(start=False)
    c.task("ps").start()
    target = tf_server(c.spec, "worker").target
    config = tf.ConfigProto(operation_timeout_in_ms=10000)
    v, up = counter()
    with tf.Session(target, config=config) as s:
        s.run(v.initializer)
        assert [s.run(up) for _ in range(3)] == [1, 2, 3]
        c.task("ps").kill()
        c.task("ps").start()
        with pytest.raises(LOST):
            s.run(up)

    def again():
        with tf.Session(target, config=config) as s:
            with pytest.raises(tf.errors.NotFoundError, match="counter"):
                s.run(up)
            s.run(v.initializer)
            return s.run(up)

    assert until(15, again) == 1


@pytest.mark.parametrize("ps_index", [0, 1])
def test_monitored_session_recovers(cluster, tmp_path, ps_index):
    """A ps dies and comes back in the middle of training: the loop goes on from the last checkpoint and reaches its step."""
    c = cluster(ps=2)
    with tf.device(tf.train.replica_device_setter(cluster=c.spec, worker_device="/job:worker/task:0")):
        step = tf.train.get_or_create_global_step()
        w = tf.get_variable("w", [3], tf.float64, initializer=tf.zeros_initializer(), use_resource=True)
        with tf.control_dependencies([w.assign_add([1.0, 1.0, 1.0])]):
            up = tf.assign_add(step, 1)
    killed = False
    with tf.train.MonitoredTrainingSession(c.target(), checkpoint_dir=str(tmp_path / "ckpt"), save_checkpoint_steps=5, save_checkpoint_secs=None, save_summaries_steps=None,
                                           save_summaries_secs=None, log_step_count_steps=None, hooks=[tf.train.StopAtStepHook(last_step=30)]) as s:
        while not s.should_stop():
            at = s.run(up)
            if at >= 12 and not killed:
                killed = True
                c.task("ps", ps_index).kill()
                threading.Timer(1.0, c.task("ps", ps_index).start).start()
    assert killed and at == 30
    assert tf.train.latest_checkpoint(str(tmp_path / "ckpt")).endswith("-30")
    assert list(tf.train.load_checkpoint(str(tmp_path / "ckpt")).get_tensor("w")) == [30.0] * 3


@pytest.mark.asan
def test_worker_dies(cluster):
    """Training on the other worker goes on, and so does the lost one when it is back; what it had begun is undone."""
    c = cluster(workers=2)
    v, up = counter()
    with tf.device(P0):
        q = tf.FIFOQueue(1, tf.int32, shapes=[[]], shared_name="q")
        take, put, size = q.dequeue(), q.enqueue(1), q.size()
    filters = [["/job:ps", f"/job:worker/task:{i}"] for i in range(2)]
    with session(c, 0, device_filters=filters[0]) as s0:
        s0.run(v.initializer)
        s1 = session(c, 1, device_filters=filters[1])
        for _ in range(5):
            s0.run(up)
            s1.run(up)
        t, errors = background(s1.run, take)
        time.sleep(0.3)
        c.task("worker", 1).kill()
        for _ in range(20):
            s0.run(up)
        end = time.monotonic() + 8
        s0.run(put)
        while s0.run(size) == 0:  # the dequeue of the lost worker took it before its end was noticed
            assert time.monotonic() < end
            time.sleep(0.1)
            s0.run(put)
        c.task("worker", 1).start()
        t.join(10)  # until now TensorFlow's client has been trying again
        # TensorFlow 1 tries for so long that its own deadline comes first.
        assert len(errors) == 1 and isinstance(errors[0], LOST + ((tf.errors.DeadlineExceededError,) if tensorflow_1() else ())), errors

        def back():
            with session(c, 1, device_filters=filters[1]) as s:
                return s.run(up)

        assert until(10, back) == 31
        assert s0.run(v) == 31


def test_client_metrics(cluster):
    """A task tells how the calls went that it made to others."""
    c = cluster()
    v, up = counter()

    def calls(what, method="RunGraph", more=""):
        with urllib.request.urlopen(f"http://{c.spec['worker'][0]}/metrics", timeout=10) as r:
            m = re.search(rf'^trainera_rpc_client_{what}{{method="{method}"{more}}} (\S+)$', r.read().decode(), re.M)
        return float(m[1]) if m else 0

    with session(c) as s:
        s.run(v.initializer)
        for _ in range(5):
            s.run(up)
        n = calls("calls_total")
        assert n >= 6 and calls("latency_seconds_count") == n and 0 < calls("latency_seconds_sum") < 5
        assert calls("calls_total", "CreateWorkerSession") == 1
        assert calls("errors_total", more=',code="Unavailable"') == 0
        c.task("ps").kill()
        with pytest.raises(LOST):
            s.run(up)
        assert calls("errors_total", more=',code="Unavailable"') == 1


@pytest.mark.asan
def test_told_to_go(cluster):
    """A task in use ends with exit code 0 at once, one with a blocked step after some seconds' grace."""
    c = cluster(ps=2)
    with tf.device(P0):
        q = tf.FIFOQueue(1, tf.int32, shared_name="q")
        take, size = q.dequeue(), q.size()
    v, up = counter(P1)
    s = session(c)
    s.run([v.initializer, size])
    t, errors = background(s.run, take)
    time.sleep(0.3)
    for job, index, how, seconds in (("ps", 1, signal.SIGINT, 3), ("ps", 0, signal.SIGTERM, 9), ("worker", 0, signal.SIGTERM, 3)):
        start, p = time.monotonic(), c.task(job, index).proc
        p.send_signal(how)
        assert p.wait(20) == 0
        assert time.monotonic() - start < seconds
        if (job, index) == ("ps", 0):
            t.join(10)
            assert len(errors) == 1 and isinstance(errors[0], LOST + (tf.errors.CancelledError,)), errors
            s.close()  # to close it later, the client would look for the worker for as long as its operations may take


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    """A header field, without indexing and Huffman; the values here are shorter than 127 bytes."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call(path, stream=1, end=False):
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x"), (b"content-type", b"application/grpc"), (b"te", b"trailers")]
    return frame(1, 4 | end, stream, b"".join(literal(*f) for f in fields))


def strangers():
    rng = random.Random(7)

    def noise(n):
        return rng.getrandbits(8 * n).to_bytes(n, "big")

    settings = PREFACE + frame(4, 0, 0, b"")
    run, recv = b"/tensorflow.MasterService/RunStep", b"/tensorflow.WorkerService/RecvTensor"
    yield b""
    for n in (1, 9, 24, 1000, 100000):
        yield noise(n)
        yield PREFACE + noise(n)
        yield settings + noise(n)
    yield b"GET / HTTP/1.1\r\n\r\n"
    yield b"POST /tensorflow.MasterService/RunStep HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 5000
    yield b"GET /" + b"a" * 200000
    yield b"GET /healthz HTTP/9.9\r\n" + b"x: y\r\n" * 10000
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise(500)  # TLS
    for path in (run, recv, b"/tensorflow.MasterService/CreateSession", b"/tensorflow.WorkerService/RegisterGraph", b"/tensorflow.WorkerService/RunGraph", b"/no.Such/Method", b"*"):
        yield settings + call(path)  # and no more
        yield settings + call(path, end=True)  # no message
        yield settings + call(path) + frame(0, 1, 1, b"\0\0\0\0\x64" + noise(10))  # less than it says
        yield settings + call(path) + frame(0, 1, 1, b"\0\xff\xff\xff\xff" + noise(1000))  # 4 GiB, it says
        yield settings + call(path) + frame(0, 0, 1, b"\0\x7f\xff\xff\xff" + noise(1000))  # 2 GiB, and waits
        yield settings + call(path) + frame(0, 1, 1, b"\1\0\0\0\x0a" + noise(10))  # compressed, with nothing
        body = noise(300)
        yield settings + call(path) + frame(0, 1, 1, b"\0" + struct.pack(">I", len(body)) + body)
    yield settings + b"".join(call(recv, 2 * i + 1) for i in range(3000))  # streams without end
    yield settings + frame(1, 0, 1, literal(b":path", b"/x")) + frame(9, 0, 1, literal(b"a", b"b" * 100) * 100) * 200  # headers without end
    yield settings + frame(6, 0, 0, b"12345678") * 20000  # pings
    yield settings + (call(run) + frame(3, 0, 1, b"\0\0\0\x08"))
    yield settings + b"".join(call(run, 2 * i + 1) + frame(3, 0, 2 * i + 1, b"\0\0\0\x08") for i in range(3000))  # rapid reset


def meet(address, data, hold):
    host, port = address.rsplit(":", 1)
    s = socket.create_connection((host, int(port)), timeout=5)
    try:
        s.setblocking(False)
        end, sent = time.monotonic() + 2, 0
        while sent < len(data) and time.monotonic() < end:
            try:
                sent += s.send(data[sent:])
            except BlockingIOError:
                try:
                    s.recv(1 << 20)
                except BlockingIOError:
                    time.sleep(0.005)
        time.sleep(0.01)
    except OSError:
        pass  # hung up on us: well done
    hold.append(s)


SHADOW = range(0x7fff7000, 0x10007fff8000)  # where AddressSanitizer keeps its notes on x86-64


def resident(pid):
    """Bytes in memory. The sanitizer's notes do not count: it writes an eighth of the size of every buffer that is freed into the pool, and a stranger who
    announces 2 GiB gets a buffer of that size, of which nothing but these notes (256 MB) is ever touched."""
    if not SANITIZED:
        with open(f"/proc/{pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    total = 0
    with open(f"/proc/{pid}/smaps") as f:
        for line in f:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                notes = int(line.split("-")[0], 16) in SHADOW
            elif line.startswith("Rss:") and not notes:
                total += int(line.split()[1]) << 10
    return total


@pytest.mark.asan
def test_strangers(cluster):
    """Bytes of all wrong kinds, to the ps and to the worker, while they count: no step is lost, no descriptor, no memory."""
    c = cluster()
    v, up = counter()

    def usage(t):
        return resident(t.proc.pid), len(os.listdir(f"/proc/{t.proc.pid}/fd"))

    with session(c) as s:
        s.run(v.initializer)
        s.run(up)
        before = [usage(t) for t in c.tasks]
        n, hold = 1, []
        for data in strangers():
            for t in c.tasks:
                meet(t.address, data, hold)
            n += 1
            assert s.run(up) == n
        for h in hold:
            h.close()
        end = time.monotonic() + 5
        while any(usage(t)[1] > b[1] + 2 for t, b in zip(c.tasks, before)):
            assert time.monotonic() < end, "descriptors stay open"
            time.sleep(0.05)
        for t, b in zip(c.tasks, before):
            assert usage(t)[0] - b[0] < 60 << 20
        assert s.run(up) == n + 1
