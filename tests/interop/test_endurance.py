"""Many steps, little left behind: exact sums, flat memory, no step, session, graph or descriptor that outlives its client."""
import gc
import json
import os
import pathlib
import re
import subprocess
import threading
import time
import urllib.request

import pytest
import tensorflow.compat.v1 as tf

from conftest import BIN, SANITIZED

COMPARES = False

COUNTERBENCH = pathlib.Path(BIN).parent / "bench" / "counterbench"
MB = 1 << 20
LEFT = ("sessions", "worker_sessions", "registered_graphs", "steps_live")


def metrics(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as r:
        return {k: float(v) for k, v in re.findall(r"^trainera_(\w+) (\S+)$", r.read().decode(), re.M)}


def rss(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def nothing_left(t, fds):
    """A task has no step, session or graph and at most `fds` descriptors, as soon as the last goodbyes have been heard: nobody waits for them."""
    end = time.monotonic() + 5
    while True:
        left, n = {k: v for k, v in metrics(t.address).items() if k in LEFT and v != 0}, descriptors(t.proc.pid)
        if not left and n <= fds:
            return
        assert time.monotonic() < end, f"{t.job}/{t.index}: {left}, {n} descriptors, {fds} expected"
        time.sleep(0.1)


class Watch(threading.Thread):
    """Samples what the tasks have in memory until told to stop."""

    def __init__(self, tasks):
        super().__init__(daemon=True)
        self.tasks, self.samples, self.over = tasks, [], threading.Event()

    def run(self):
        while not self.over.wait(0.01):  # twenty thousand steps are over in less than a second
            self.samples.append([rss(t.proc.pid) for t in self.tasks])

    def growth(self):
        """Per task: the most that it had in the last quarter of the run over the most that it had in the second one."""
        n = len(self.samples) // 4
        assert n >= 2, "too quick to say anything about memory"
        early, late = self.samples[n:2 * n], self.samples[-n:]
        return [max(s[i] for s in late) - max(s[i] for s in early) for i in range(len(self.tasks))]


def tensorflow_client(target, steps, errors):
    """Counts the same variable as counterbench does, with TensorFlow's own client."""
    try:
        with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
            v = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name="counter")
            with tf.control_dependencies([tf.raw_ops.AssignAddVariableOp(resource=v, value=tf.constant(1, tf.int64))]):
                up = tf.raw_ops.ReadVariableOp(resource=v, dtype=tf.int64)
            with tf.Session(target, config=tf.ConfigProto(operation_timeout_in_ms=60000)) as s:
                run = s.make_callable(up)
                last = 0
                for _ in range(steps):
                    now = run()
                    assert now > last
                    last = now
    except BaseException as e:
        errors.append(e)


def count(c, total, by_tensorflow):
    """Six clients in C and two of TensorFlow, on both workers."""
    targets = [c.target("worker", i) for i in range(2)]
    first = subprocess.run([COUNTERBENCH, "--steps=100", *targets], capture_output=True, text=True, timeout=60)  # makes the variable
    assert first.returncode == 0, first.stderr
    before = [descriptors(t.proc.pid) for t in c.tasks]
    watch = Watch(c.tasks)
    watch.start()
    start = time.monotonic()
    p = subprocess.Popen([COUNTERBENCH, "--clients=6", f"--steps={total - 100 - 2 * by_tensorflow}", "--keep", *targets], stdout=subprocess.PIPE, text=True)
    errors = []
    clients = [threading.Thread(target=tensorflow_client, args=(targets[i], by_tensorflow, errors)) for i in range(2)]
    for t in clients:
        t.start()
    out = json.loads(p.communicate(timeout=1800)[0])
    assert p.returncode == 0
    for t in clients:
        t.join(600)
    assert not errors, errors[0]
    secs = time.monotonic() - start
    watch.over.set()
    watch.join()
    check = json.loads(subprocess.run([COUNTERBENCH, "--steps=1", "--keep", targets[0]], capture_output=True, text=True, timeout=60).stdout)
    assert check["total"] == total + 1, "an increment was lost, or counted twice"

    gc.collect()  # TensorFlow's sessions close their connections when they are collected
    for t, fds in zip(c.tasks, before):
        nothing_left(t, fds + 2)  # connections between tasks stay; a task may have opened one more to another since
    growth = watch.growth()
    print(f"{total} steps in {secs:.0f} s ({total / secs:.0f}/s, {out['steps_per_s']:.0f}/s of them from C); resident MB at the end "
          f"{[round(x / MB, 1) for x in watch.samples[-1]]}, growth {[round(x / MB, 2) for x in growth]}")
    if not SANITIZED:  # a sanitizer keeps what was freed
        for t, g in zip(c.tasks, growth):
            assert g < 1 * MB, f"{t.job}/{t.index} grew by {g / MB:.1f} MB while doing the same thing over and over"
        assert max(watch.samples[-1]) < 40 * MB


@pytest.mark.asan
def test_twenty_thousand(cluster):
    count(cluster(ps=1, workers=2), 20_000, 1000)


@pytest.mark.slow
def test_million(cluster):
    count(cluster(ps=1, workers=2), 1_000_000, 20_000)


@pytest.mark.asan
def test_sessions_come_and_go(cluster):
    """Sessions, their graphs and their connections leave nothing behind, however many there were."""
    c = cluster(ps=1, workers=2)
    sizes = []
    for i in range(16):
        subprocess.run([COUNTERBENCH, "--clients=20", "--steps=100", c.target("worker", 0), c.target("worker", 1)], check=True, capture_output=True, timeout=60)
        sizes.append([(rss(t.proc.pid), descriptors(t.proc.pid)) for t in c.tasks])
    for t, (bytes_1, fds_1), (bytes_2, _) in zip(c.tasks, sizes[7], sizes[15]):
        nothing_left(t, fds_1 + 1)
        if not SANITIZED:
            assert bytes_2 - bytes_1 < MB, f"{t.job}/{t.index}: 160 sessions cost {(bytes_2 - bytes_1) / MB:.1f} MB"


def test_memory_is_given_back(cluster):
    """Buffers stay warm between steps and go back to the kernel when nobody wants them."""
    c = cluster(ps=1, workers=1)
    n = 25_000_000  # 100 MB
    with tf.device("/job:ps/task:0"):
        v = tf.get_variable("v", [n], initializer=tf.zeros_initializer(), use_resource=True)
    with tf.device("/job:worker/task:0"):
        push = v.assign_add(tf.fill([n], tf.placeholder_with_default(1.0, []))).op
        pull = tf.reduce_max(v.read_value())
    with tf.Session(c.target("worker"), config=tf.ConfigProto(operation_timeout_in_ms=60000)) as s:
        s.run(v.initializer)
        for i in range(3):
            s.run(push)
        assert s.run(pull) == 3.0
        busy = [rss(t.proc.pid) for t in c.tasks]
        start = time.monotonic()
        while True:
            idle = [rss(t.proc.pid) for t in c.tasks]
            # The ps has its variable and nothing else, the worker nothing.
            if SANITIZED or (idle[0] < (100 + 20) * MB and idle[1] < 20 * MB):
                break
            assert time.monotonic() - start < 20, f"MB busy {[x // MB for x in busy]}, idle {[x // MB for x in idle]}"
            time.sleep(0.2)
        s.run(push)
        assert s.run(pull) == 4.0
        print(f"MB busy {[x // MB for x in busy]}, idle {[x // MB for x in idle]} after {time.monotonic() - start:.1f} s")
