"""How a native ps learns from TensorFlow's workers that the job is over, and what partial knowledge of the cluster is good for."""
import signal
import subprocess
import sys
import threading
import time

import pytest
import tensorflow as tf
from clusters import BIN, free_ports

COMPARES = False
v1 = tf.compat.v1


class Ps:
    def __init__(self, *args, spec, tmp_path):
        self.log = open(tmp_path / "ps.log", "w+")
        self.p = subprocess.Popen([BIN, "serve", "--job_name=ps", *args, *(f"--job={j}={','.join(a)}" for j, a in spec.items())], stderr=self.log)

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def code(self, seconds=60):
        try:
            return self.p.wait(seconds)
        except subprocess.TimeoutExpired:
            self.p.kill()
            raise AssertionError(self.text())


@pytest.fixture
def ps(tmp_path):
    made = []

    def make(*args, **spec):
        made.append(Ps(*args, spec=spec, tmp_path=tmp_path))
        return made[-1]

    yield make
    for p in made:
        if p.p.poll() is None:
            p.p.kill()
        p.p.wait()


def put_done(target, task, number, kind=tf.int32, capacity=2):
    """As a worker of the pattern does when it has finished."""
    with tf.Graph().as_default(), tf.device(f"/job:ps/task:{task}"):
        queue = v1.FIFOQueue(capacity, kind, shared_name=f"done_queue{task}")
        put = queue.enqueue(tf.constant(number, kind))
        # The other workers are not there (any more): a session that would wait for them waits for ever.
        with v1.Session(target, config=v1.ConfigProto(device_filters=["/job:ps"], operation_timeout_in_ms=60000)) as s:
            s.run(put)


def test_a1_done_queue(ps):
    """The ps takes as many elements as there are workers from the queue that they make, whatever its type."""
    a, b = free_ports(2)
    p = ps("--done-queue=done_queue{task}", ps=[f"localhost:{a}"], worker=[f"localhost:{b}", "localhost:1"])
    target = f"grpc://localhost:{a}"
    put_done(target, 0, 1, kind=tf.float32, capacity=7)
    time.sleep(0.5)
    assert p.p.poll() is None, p.text()
    put_done(target, 0, 2, kind=tf.float32, capacity=7)
    assert p.code() == 0
    assert "2 elements were put into queue 'done_queue0': ending" in p.text()


def test_a1_until_done(ps):
    """A ps that knows no worker at all serves whoever comes, and ends when they have closed their sessions and left."""
    a, b = free_ports(2)
    p = ps("--until-done", ps=[f"localhost:{a}"])
    program = f"""
import tensorflow as tf
v1 = tf.compat.v1
v1.disable_v2_behavior()
from tensorflow.core.protobuf import tensorflow_server_pb2 as pb
server = tf.distribute.Server({{"ps": ["localhost:{a}"], "worker": {{5: "localhost:{b}"}}}}, job_name="worker", task_index=5)
with tf.device("/job:ps/task:0"):
    x = v1.get_variable("x", [], initializer=v1.zeros_initializer())
with tf.device("/job:worker/task:5"):
    y = x + 1.0
for i in range(2):
    with v1.Session(server.target) as s:
        s.run(x.initializer)
        print(s.run([y, x.assign_add(1.0)]))
"""
    r = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r.stderr
    assert p.code(20) == 0
    assert "every session has been closed and nobody is connected: ending" in p.text()


def test_sigterm_drains(ps):
    """A step that runs when SIGTERM comes still gets its answer."""
    a, = free_ports(1)
    p = ps(ps=[f"localhost:{a}"])
    with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
        v = v1.get_variable("v", [], initializer=v1.zeros_initializer(), use_resource=True)
        loop = tf.while_loop(lambda i: i < 200000, lambda i: i + 1, [tf.constant(0)])
        s = v1.Session(f"grpc://localhost:{a}", config=v1.ConfigProto(operation_timeout_in_ms=60000))
        s.run(v.initializer)
        threading.Timer(0.2, lambda: p.p.send_signal(signal.SIGTERM)).start()
        assert s.run(loop) == [200000]
    s._closed = True  # there is nobody left to close it with: TensorFlow would wait without end
    assert p.code() == 0
    assert "SIGTERM: ending" in p.text()


def test_a5_operation_timeout_while_a_ps_is_dead(ps):
    """The client's deadline holds, and the error names the task that is missing."""
    a, b = free_ports(2)
    ps(ps=[f"localhost:{a}", f"localhost:{b}"])  # ps/1 never comes
    config = v1.ConfigProto(operation_timeout_in_ms=3000)
    begin = time.time()
    with tf.Graph().as_default():
        c = tf.constant(1)
        with pytest.raises(tf.errors.OpError) as e:
            with v1.Session(f"grpc://localhost:{a}", config=config) as s:
                s.run(c)
    assert time.time() - begin < 30
    assert isinstance(e.value, (tf.errors.DeadlineExceededError, tf.errors.UnavailableError)), e.value
