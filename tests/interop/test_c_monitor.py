"""Monitored sessions and the coordinator in C, in clusters of processes: alone, with TensorFlow chiefs and workers, and with tasks that are killed."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from clusters import BIN, free_ports
from conftest import tf_server

tf1 = tf.compat.v1
C = pathlib.Path(os.environ.get("TRAINERA_BUILD") or pathlib.Path(BIN).parent) / "tests" / "interop" / "c"
PATIENCE = 60


class Proc:
    """One program, with what it said. May be killed and started again."""

    def __init__(self, name, cmd, tmp):
        self.name, self.cmd = name, [str(c) for c in cmd]
        self.out, self.err = tmp / f"{name}.out", tmp / f"{name}.err"
        self.p = None

    def start(self):
        env = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
        with open(self.out, "ab") as out, open(self.err, "ab") as err:
            self.p = subprocess.Popen(self.cmd, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env)
        return self

    def said(self):
        return self.out.read_text() if self.out.exists() else ""

    def log(self):
        return self.err.read_text(errors="replace") if self.err.exists() else ""

    def kill(self):
        self.p.kill()
        self.p.wait()

    def end(self, timeout=PATIENCE):
        try:
            code = self.p.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end:\n{self.said()[-500:]}\n{self.log()[-3000:]}") from None
        assert code == 0, f"{self.name} ended with {code}:\n{self.log()[-3000:]}"

    def steps(self):
        return [int(s) for s in re.findall(r"^step (\d+) ", self.said(), re.M)]

    def final(self):
        m = re.findall(r"final step (\d+) w (\S+) (\S+) b (\S+) recoveries (\d+)", self.said())
        assert m, f"{self.name} said no final line:\n{self.said()[-300:]}\n{self.log()[-3000:]}"
        return [float(x) for x in m[-1]]


def until(what, *procs, timeout=PATIENCE):
    end = time.monotonic() + timeout
    while not what():
        assert time.monotonic() < end, "\n".join(f"{p.name}:\n{p.said()[-300:]}\n{p.log()[-2000:]}" for p in procs)
        time.sleep(0.01)


@pytest.fixture
def job(tmp_path):
    """job(ps, workers, flags) -> spec, {"ps0": Proc, …}; nothing is started yet."""
    made = []

    def make(ps=1, workers=2, *flags, program="mtrainer"):
        ports = iter(free_ports(ps + workers))
        spec = {"ps": [f"127.0.0.1:{next(ports)}" for _ in range(ps)], "worker": [f"127.0.0.1:{next(ports)}" for _ in range(workers)]}
        hosts = [f"--{j}_hosts={','.join(a)}" for j, a in spec.items()]
        procs = {f"{j}{i}": Proc(f"{j}{i}", [C / program, *hosts, f"--job_name={j}", f"--task_index={i}", *flags], tmp_path) for j, a in spec.items() for i in range(len(a))}
        made.extend(procs.values())
        return spec, procs

    yield make
    for p in made:
        if p.p and p.p.poll() is None:
            p.kill()


def close_to_it(final, last, slack=9):
    """Asynchronous workers may be some steps past the end, as in TensorFlow: each sees the others' with the delay of a step. The weights are found."""
    step, w0, w1, b = final[:4]
    assert last <= step <= last + slack
    np.testing.assert_allclose([w0, w1, b], [3, -2, 1], atol=0.02)


@pytest.mark.asan
@pytest.mark.parametrize("flags", [[], ["--ref"], ["--sync"], ["--spread"]], ids=" ".join)
def test_cluster(job, tmp_path, flags):
    """Two ps and three workers train, save, and all end by themselves."""
    last = 150
    _, procs = job(2, 3, f"--dir={tmp_path}/ckpt", f"--train_steps={last}", "--pause_ms=2", *flags)
    for p in procs.values():
        p.start()
    for p in procs.values():
        p.end()
    for i in range(3):
        close_to_it(procs[f"worker{i}"].final(), last)
    assert tf.train.latest_checkpoint(tmp_path / "ckpt").startswith(str(tmp_path / "ckpt" / "model.ckpt-1"))
    assert tf.train.load_checkpoint(tmp_path / "ckpt").get_tensor("w").shape == (2, 1)
    if "--sync" not in flags:
        assert sum(len(procs[f"worker{i}"].steps()) for i in range(3)) >= last


def test_says_for_whom_it_waits(job):
    _, procs = job(1, 2, "--train_steps=5")
    w = procs["worker1"].start()
    until(lambda: "waiting for tasks" in w.log(), w, timeout=20)
    assert re.search(r"waiting for tasks for \d+ s: .*not yet: /job:ps/replica:0/task:0 at 127", w.log())
    ps = procs["ps0"].start()
    until(lambda: "waiting for the chief" in w.log(), w, timeout=20)
    assert re.search(r"it has not yet initialised 3 variables: global_step, b, w on /job:ps/task:0; .*gives up in \d+ s", w.log())
    until(lambda: "ends when these are done" in ps.log(), ps, timeout=20)
    assert "/job:worker/task:0, /job:worker/task:1" in ps.log()
    began = time.monotonic()
    procs["worker0"].start()
    for p in procs.values():
        p.end()
    assert time.monotonic() - began < 10


def run_with_kills(job, tmp_path, victims, ps=1, flags=()):
    """A job in which `victims` are killed at step 60 and started again half a second later."""
    last = 200
    _, procs = job(ps, 3, f"--dir={tmp_path}/ckpt", f"--train_steps={last}", "--save_steps=20", "--pause_ms=10", *flags)
    for p in procs.values():
        p.start()
    until(lambda: max(procs["worker0"].steps() + procs["worker1"].steps() + procs["worker2"].steps() + [0]) >= 60, *procs.values())
    for v in victims:
        procs[v].p.send_signal(signal.SIGKILL)
    for v in victims:
        procs[v].p.wait()
    time.sleep(0.5)
    began = {k: len(p.steps()) for k, p in procs.items()}
    for v in victims:
        procs[v].start()
    for p in procs.values():
        p.end()
    for i in range(3):
        close_to_it(procs[f"worker{i}"].final(), last)
    return procs, began


@pytest.mark.asan
@pytest.mark.parametrize("victims", [["worker1"], ["worker0"], ["ps0"], ["ps0", "worker0", "worker1", "worker2"]], ids=["worker", "chief", "ps", "all"])
def test_killed(job, tmp_path, victims):
    procs, began = run_with_kills(job, tmp_path, victims)
    if "ps0" in victims:
        chief = procs["worker0"]
        assert "restored " in chief.log()
        resumed = chief.steps()[began["worker0"]:]
        assert resumed and min(resumed) >= 20, "it went on from a checkpoint, not from the beginning"
        if len(victims) == 1:
            for i in range(3):
                assert procs[f"worker{i}"].final()[4] >= 1  # recovered by itself
                assert "a task was lost" in procs[f"worker{i}"].log()
    if victims == ["worker1"]:
        assert procs["worker0"].final()[4] == 0 and procs["worker2"].final()[4] == 0  # the others do not notice


def test_one_of_two_ps_killed(job, tmp_path):
    procs, began = run_with_kills(job, tmp_path, ["ps1"], ps=2, flags=["--spread"])
    assert min(procs["worker0"].steps()[began["worker0"]:]) >= 20


def test_killed_sync(job, tmp_path):
    """The chief of synchronous training is killed with its ps."""
    run_with_kills(job, tmp_path, ["ps0", "worker0"], flags=["--sync"])


# ---- with TensorFlow ---------------------------------------------------------------------------------------------------


def tf_model(task, ref=False):
    """The model of mtrainer.c, as a TensorFlow program has it."""
    with tf1.device("/job:ps/task:0"):
        step = tf1.train.get_or_create_global_step()
        b = tf1.get_variable("b", initializer=tf.constant(0.0))
        w = tf1.get_variable("w", initializer=tf.zeros([2, 1]))
    with tf1.device(f"/job:worker/task:{task}"):
        x, y = tf1.placeholder(tf.float32, [None, 2], "x"), tf1.placeholder(tf.float32, [None], "y")
        loss = tf1.losses.mean_squared_error(y, tf.reshape(tf.matmul(x, w), [-1]) + b)
        train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    return x, y, step, w, b, loss, train


def tf_train(target, task, chief, last, pause=0.01, **kw):
    """Trains with MonitoredTrainingSession; returns its number of steps and what it read at the end."""
    rng, n = np.random.RandomState(task), 0
    x, y, step, w, b, _, train = tf_model(task)
    config = tf1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{task}"])
    hooks = kw.pop("hooks", [])
    with tf1.train.MonitoredTrainingSession(target, is_chief=chief, hooks=[tf1.train.StopAtStepHook(last_step=last), *hooks], config=config, **kw) as s:
        while not s.should_stop():
            xs = rng.uniform(-1, 1, [16, 2]).astype("f")
            got = s.run([train, step, w, b], {x: xs, y: xs @ np.float32([3, -2]) + 1})
            n += 1
            time.sleep(pause)
    return n, got[1:]


class ResourceVariables:
    """mtrainer's variables are resources unless it is told --ref."""

    def __init__(self, on):
        self.on = on

    def __enter__(self):
        (tf1.enable_resource_variables if self.on else tf1.disable_resource_variables)()

    def __exit__(self, *_):
        tf1.disable_resource_variables()


@pytest.mark.parametrize("ref", [False, True], ids=["resource", "ref"])
@pytest.mark.parametrize("ps_kind", ["trn", "tf"])
def test_tensorflow_chief_c_worker(job, tmp_path, ref, ps_kind):
    spec, procs = job(1, 2, "--train_steps=400", "--pause_ms=10", "--nodone", *(["--ref"] if ref else []))
    if ps_kind == "trn":
        procs["ps0"].start()
    else:
        tf_server(spec, "ps")
    c = procs["worker1"].start()
    time.sleep(0.3)  # it waits for a chief that knows nothing of gates
    with ResourceVariables(not ref):
        server = tf_server(spec, "worker", 0)
        n, got = tf_train(server.target, 0, True, 400, checkpoint_dir=str(tmp_path / "ckpt"), save_checkpoint_secs=None, save_checkpoint_steps=50,
                          log_step_count_steps=None, save_summaries_steps=None)
    c.end()
    close_to_it(c.final(), 400)
    assert n > 10 and len(c.steps()) > 10 and 400 <= n + len(c.steps()) <= 409
    np.testing.assert_allclose(got[1].ravel(), [3, -2], atol=0.05)


@pytest.mark.parametrize("ref", [False, True], ids=["resource", "ref"])
def test_c_chief_tensorflow_worker(job, tmp_path, ref):
    spec, procs = job(1, 2, f"--dir={tmp_path}/ckpt", "--train_steps=400", "--pause_ms=10", "--nodone", *(["--ref"] if ref else []))
    procs["ps0"].start()
    c = procs["worker0"].start()
    until(lambda: len(c.steps()) > 0, c)  # a TensorFlow worker that comes too early naps for 30 s
    with ResourceVariables(not ref):
        server = tf_server(spec, "worker", 1)
        n, _ = tf_train(server.target, 1, False, 400)
    c.end()
    close_to_it(c.final(), 400)
    assert n > 10 and 400 <= n + len(c.steps()) <= 409
    saved = tf.train.load_checkpoint(tmp_path / "ckpt")
    assert 400 <= saved.get_tensor("global_step") <= 409
    np.testing.assert_allclose(saved.get_tensor("w").ravel(), [3, -2], atol=0.05)


class Done(tf1.train.SessionRunHook):
    """The recipe's worker: one more in every ps's queue when it is done."""

    def __init__(self, ps, workers):
        self.ps, self.workers = ps, workers

    def begin(self):
        self.ops = []
        for i in range(self.ps):
            with tf1.device(f"/job:ps/task:{i}"):
                self.ops.append(tf1.FIFOQueue(self.workers, tf.int32, shared_name=f"done_queue{i}").enqueue(1))

    def end(self, session):
        for op in self.ops:
            session.run(op)


@pytest.mark.slow
def test_done_queues_with_tensorflow(job, tmp_path):
    """A ps in C and one in TensorFlow end when a worker in C and one in TensorFlow are done."""
    spec, procs = job(2, 2, "--train_steps=300", "--pause_ms=10")
    procs["ps0"].start()
    program = tmp_path / "ps.py"
    program.write_text(
        "import json, sys, time, tensorflow as tf\n"
        "tf1 = tf.compat.v1; tf1.disable_v2_behavior()\n"
        "spec = json.loads(sys.argv[1])\n"
        "server = tf.distribute.Server(tf.train.ClusterSpec(spec), job_name='ps', task_index=1)\n"
        "with tf1.device('/job:ps/task:1'):\n"
        "    q = tf1.FIFOQueue(2, tf.int32, shared_name='done_queue1')\n"
        "    take = q.dequeue()\n"
        "s = tf1.Session(server.target, config=tf1.ConfigProto(device_filters=['/job:ps/task:1']))\n"
        "print([int(s.run(take)) for _ in range(2)], flush=True)\n"
        "time.sleep(2)\n")  # TensorFlow's sessions do not close when a ps is gone
    ps1 = Proc("tfps", [sys.executable, program, json.dumps(spec)], tmp_path).start()
    try:
        c = procs["worker0"].start()
        until(lambda: len(c.steps()) > 0, c, ps1)
        with ResourceVariables(True):
            server = tf_server(spec, "worker", 1)
            tf_train(server.target, 1, False, 300, hooks=[Done(2, 2)])
        c.end()
        procs["ps0"].end()
        ps1.end()
        assert sorted(json.loads(ps1.said())) == [-1, 1]
        assert "/job:worker/task:0 is done" in procs["ps0"].log() and "a worker is done" in procs["ps0"].log()
    finally:
        if ps1.p.poll() is None:
            ps1.kill()


# ---- the coordinator ---------------------------------------------------------------------------------------------------


KINDS = [pytest.param("trn", "trn", id="ours", marks=pytest.mark.asan), pytest.param("tf", "tf", id="tf"), pytest.param("trn", "tf", id="tf-workers", marks=pytest.mark.slow),
         pytest.param("tf", "trn", id="tf-ps", marks=pytest.mark.slow)]


@pytest.mark.parametrize("ps_kind,worker_kind", KINDS)
def test_coordinator_loses_a_worker(cluster, tmp_path, ps_kind, worker_kind):
    """Its steps run on the others, and on it again when it is back. Every step runs, and none twice but those that were given out again."""
    c = cluster(ps=1, workers=2, ps_kind=ps_kind, worker_kind=worker_kind)
    hosts = [f"--{j}_hosts={','.join(c.spec[j])}" for j in c.spec]
    done = tmp_path / "enough"
    p = Proc("coord", [C / "mcoord", *hosts, "--job_name=worker", "--steps=100", "--pause_ms=2", f"--until={done}"], tmp_path).start()

    def ran():
        lines = re.findall(r"^scheduled \d+ workers (.*)\n", p.said(), re.M)
        return [int(n) for n in lines[-1].split()] if lines else [0, 0]

    try:
        until(lambda: min(ran()) >= 20, p)
        c.task("worker", 1).kill()
        before = ran()
        until(lambda: ran()[0] >= before[0] + 30, p)
        gone = ran()[1]
        c.task("worker", 1).start()
        until(lambda: ran()[1] >= gone + 20, p)
        done.touch()
        p.end()
    finally:
        if p.p.poll() is None:
            p.kill()
    m = re.search(r"total (\d+) scheduled (\d+) retries (\d+) workers", p.said())
    assert int(m[2]) <= int(m[1]) <= int(m[2]) + int(m[3])


@pytest.mark.parametrize("ps_kind,worker_kind", [pytest.param("trn", "trn", id="ours"), pytest.param("tf", "tf", id="tf", marks=pytest.mark.slow)])
def test_coordinator_loses_its_ps(cluster, tmp_path, ps_kind, worker_kind):
    c = cluster(ps=1, workers=2, ps_kind=ps_kind, worker_kind=worker_kind)
    hosts = [f"--{j}_hosts={','.join(c.spec[j])}" for j in c.spec]
    p = Proc("coord", [C / "mcoord", *hosts, "--job_name=worker", "--steps=3000", "--pause_ms=5"], tmp_path).start()
    try:
        until(lambda: "scheduled 60 " in p.said(), p)
        c.task("ps").kill()
        assert p.p.wait(PATIENCE) == 1
    finally:
        if p.p.poll() is None:
            p.kill()
    assert "Unavailable" in p.log().splitlines()[-1] and "/job:ps/replica:0/task:0" in p.log().splitlines()[-1]
