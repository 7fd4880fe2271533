"""Training in C (tests/interop/c/optimtool.c) beside the same training in TensorFlow: loss curves, variables and slots of every optimizer, and
synchronous replicas with C and TensorFlow workers in one job."""
import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf2
from clusters import BIN

tf = tf2.compat.v1
TOOL = str(pathlib.Path(BIN).parent / "tests" / "interop" / "c" / "optimtool")
ENV = {k: v for k, v in os.environ.items() if k != "TRAINERA_OPS_SEEN"}

ROWS, DIM, OUT, BATCH = 6, 3, 4, 5


def pattern(shape, a, c, m, scale):
    n = int(np.prod(shape))
    return ((np.arange(n) * a + c) % m - m // 2).astype(np.float32).reshape(shape) * np.float32(scale)


OPTIMIZERS = {
    "sgd": lambda gs: tf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda gs: tf.train.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda gs: tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adagrad": lambda gs: tf.train.AdagradOptimizer(0.1),
    "adadelta": lambda gs: tf.train.AdadeltaOptimizer(1.0, 0.95, 1e-4),
    "adam": lambda gs: tf.train.AdamOptimizer(0.1),
    "rmsprop": lambda gs: tf.train.RMSPropOptimizer(0.01, 0.9, 0.5),
    "centered": lambda gs: tf.train.RMSPropOptimizer(0.01, 0.9, 0.5, 1e-3, centered=True),
    "ftrl": lambda gs: tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.001, l2_regularization_strength=0.002),
    "ftrl_beta": lambda gs: tf.train.FtrlOptimizer(0.1, -0.6, 0.2, beta=0.1),
    "ftrl_shrinkage": lambda gs: tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.001, l2_regularization_strength=0.002,
                                                        l2_shrinkage_regularization_strength=0.01),
    "proximal_sgd": lambda gs: tf.train.ProximalGradientDescentOptimizer(0.1, 0.001, 0.002),
    "proximal_adagrad": lambda gs: tf.train.ProximalAdagradOptimizer(0.1, 0.1, 0.001, 0.002),
    "adagrad_da": lambda gs: tf.train.AdagradDAOptimizer(0.1, gs, 0.1, 0.0001, 0.0002),
    "adagrad_pieces": lambda gs: tf.train.AdagradOptimizer(0.1),
    "adam_pieces": lambda gs: tf.train.AdamOptimizer(0.1),
    "sgd_decay_clip": lambda gs: tf.train.GradientDescentOptimizer(tf.train.exponential_decay(0.5, gs, 4, 0.7, staircase=True)),
    "momentum_polynomial": lambda gs: tf.train.MomentumOptimizer(tf.train.polynomial_decay(0.2, gs, 6, 0.01, 2, cycle=True), 0.9, name="Mine"),
    "sgd_cosine": lambda gs: tf.train.GradientDescentOptimizer(tf.train.cosine_decay_restarts(0.5, gs, 3, 2.0, 0.8, 0.1)),
    "sgd_piecewise": lambda gs: tf.train.GradientDescentOptimizer(tf.train.piecewise_constant(gs, [3, 11], [0.5, 0.1, 0.02])),
}


def in_tensorflow(name, resource, path):
    """The losses; all variables are saved at `path`."""
    def var(n, value, **kw):
        return tf.get_variable(n, initializer=tf.constant(value), use_resource=resource, **kw)

    pieces = "pieces" in name
    cut = {"partitioner": tf.fixed_size_partitioner(4)} if pieces else {}
    gs = tf.train.get_or_create_global_step()
    with tf.variable_scope("model"):
        emb, w = var("emb", pattern((ROWS, DIM), 7, 3, 11, 0.1), **cut), var("w", pattern((DIM, OUT), 5, 1, 13, 0.1))
    bias = var("bias", pattern((OUT,), 3, 2, 7, 0.05))
    ids, y = tf.placeholder(tf.int32, [BATCH]), tf.placeholder(tf.float32, [BATCH, OUT])
    h = tf.tanh(tf.nn.bias_add(tf.matmul(tf.nn.embedding_lookup(emb, ids, partition_strategy="div"), w), bias))
    loss = tf.reduce_mean(tf.math.squared_difference(h, y))
    opt = OPTIMIZERS[name](gs)
    gv = opt.compute_gradients(loss)
    assert isinstance(gv[0][0], tf.IndexedSlices)
    if "clip" in name:
        clipped, _ = tf.clip_by_global_norm([g for g, _ in gv], 0.2)
        gv = list(zip(clipped, [v for _, v in gv]))
    train = opt.apply_gradients(gv, gs)
    losses = []
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for t in range(20):
            feed = {ids: [(i * i + t) % ROWS for i in range(BATCH)], y: pattern((BATCH, OUT), 11, 5 * t, 17, 0.1)}
            losses.append(sess.run([loss, train], feed)[0])
        tf.train.Saver().save(sess, path, write_meta_graph=False)
    return np.array(losses)


@pytest.mark.parametrize("kind", ["resource", "ref"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_same_curve(tmp_path, name, kind):
    """Twenty steps: losses to 1e-4, variables and slots, by TensorFlow's names, to 1e-5."""
    p = subprocess.run([TOOL, "curve", name, kind, tmp_path / "ckpt"], capture_output=True, text=True, env=ENV, timeout=60)
    assert p.returncode == 0, p.stderr
    ours = np.array([float(x) for x in p.stdout.split()])
    losses = in_tensorflow(name, kind == "resource", str(tmp_path / "theirs"))
    np.testing.assert_allclose(ours, losses, rtol=1e-4)
    assert losses[-1] != losses[0]
    ours, theirs = (tf.train.load_checkpoint(str(tmp_path / n)) for n in ("ckpt", "theirs"))
    assert ours.get_variable_to_shape_map() == theirs.get_variable_to_shape_map()
    for n in theirs.get_variable_to_shape_map():
        np.testing.assert_allclose(ours.get_tensor(n), theirs.get_tensor(n), rtol=1e-4, atol=1e-5, err_msg=n)


# ---- synchronous replicas ---------------------------------------------------------------------------------------------

class Worker:
    """A program whose output is read while it runs."""

    def __init__(self, cmd, **kw):
        self.proc = subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV, **kw)
        self.out, self.err = [], []
        self.ready = threading.Event()
        self.threads = [threading.Thread(target=self.read, args=(self.proc.stdout, self.out)), threading.Thread(target=self.read, args=(self.proc.stderr, self.err))]
        for t in self.threads:
            t.start()

    def read(self, f, lines):
        for line in f:
            lines.append(line)
            if line.startswith("ready"):
                self.ready.set()
        self.ready.set()

    def finish(self, timeout=60):
        """What it printed, as {key: [words]}."""
        try:
            code = self.proc.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.proc.args} hangs:\n{''.join(self.out)}{''.join(self.err)}") from None
        for t in self.threads:
            t.join()
        assert code == 0, "".join(self.out + self.err)
        return {w[0]: w[1:] for w in (line.split() for line in self.out) if w}

    def kill(self):
        self.proc.kill()
        self.proc.wait()


@pytest.fixture
def start():
    """start(program, arguments…) -> Worker; whatever still runs at the end is killed."""
    made = []

    def go(*cmd):
        made.append(Worker([str(c) for c in cmd]))
        return made[-1]

    yield go
    for w in made:
        if w.proc.poll() is None:
            w.kill()


def expected(updates):
    """w and emb after so many updates with momentum 0.5, rate 0.1 and gradients 2 and 1."""
    m, total = 0.0, 0.0
    for _ in range(updates):
        m = 0.5 * m + 1
        total += 0.1 * m
    w = pattern((3,), 1, 0, 3, 1) - 2 * total
    emb = np.zeros((4, 2))
    emb[[1, 3]] -= total
    return w, emb.reshape(-1)


def check(got):
    w, emb = expected(int(got["global_step"][0]))
    np.testing.assert_allclose([float(x) for x in got["w"]], w, rtol=1e-5)
    np.testing.assert_allclose([float(x) for x in got["emb"]], emb, rtol=1e-5)


@pytest.mark.parametrize("ps_kind", ["trn", "tf"])
def test_two_of_four_leave(cluster, start, ps_kind):
    """Four synchronous C workers; two leave early, the rest go on to the end, every update with four gradients."""
    c = cluster(ps=2, workers=4, ps_kind=ps_kind)
    args = [{"last_step": 30}, {"leave_after": 4}, {"leave_after": 9}, {"last_step": 30}]
    ws = [start(TOOL, "sync", c.target("worker", i), i, 4, 4, "resource", *(f"{k}={v}" for k, v in a.items())) for i, a in enumerate(args)]
    got = [w.finish() for w in ws]
    assert got[1]["steps"] == ["4"] and got[2]["steps"] == ["9"]
    assert int(got[0]["global_step"][0]) == 30
    assert int(got[3]["global_step"][0]) == 30
    check(got[0])
    check(got[3])


def test_late_ones_are_dropped_and_counted(cluster, start):
    c = cluster(ps=2, workers=3)
    args = [["last_step=30", "slow_ms=5"], ["slow_ms=5"], ["slow_ms=80"]]
    ws = [start(TOOL, "sync", c.target("worker", i), i, 2, 3, "ref", *a) for i, a in enumerate(args)]
    got = [w.finish() for w in ws]
    check(got[0])
    assert int(got[2]["stale"][0]) >= 1
    assert int(got[2]["global_step"][0]) >= 30


def test_a_dead_worker_is_replaced_by_a_token(cluster, start):
    c = cluster(ps=2, workers=2)
    ws = [start(TOOL, "sync", c.target("worker", i), i, 2, 2, "resource", *a)
          for i, a in enumerate([["last_step=10", "stall_ms=2000"], ["leave_after=3", "die"]])]
    ws[1].finish()
    got = ws[0].finish()
    assert int(got["global_step"][0]) == 10
    check(got)
    assert any("a worker seems to be lost" in line for line in ws[0].err)


TF_WORKER = """
import sys
import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
target, task, n, total, kind, last_step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6])
if kind == "resource":
    tf.enable_resource_variables()
with tf.device(tf.train.replica_device_setter(ps_tasks=2, worker_device=f"/job:worker/task:{task}")):
    gs = tf.train.get_or_create_global_step()
    w = tf.get_variable("w", initializer=tf.constant([-1.0, 0.0, 1.0]))
    emb = tf.get_variable("emb", initializer=tf.zeros([4, 2]))
    loss = 2 * tf.reduce_sum(w) + tf.reduce_sum(tf.nn.embedding_lookup(emb, tf.constant([1, 3])))
    opt = tf.train.SyncReplicasOptimizer(tf.train.MomentumOptimizer(0.1, 0.5), replicas_to_aggregate=n, total_num_replicas=total)
    train = opt.minimize(loss, global_step=gs)
    hooks = [opt.make_session_run_hook(task == 0, 0)]
    if last_step:
        hooks.append(tf.train.StopAtStepHook(last_step=last_step))
steps = 0
config = tf.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{task}"])
with tf.train.MonitoredTrainingSession(master=target, is_chief=task == 0, hooks=hooks, config=config, stop_grace_period_secs=3) as sess:
    print("ready", task, flush=True)
    while not sess.should_stop():
        values = sess.run([train, gs, w, emb])
        steps += 1
print("steps", steps)
print("seen", values[1], *values[2], *values[3].reshape(-1), flush=True)
"""


@pytest.mark.parametrize("kind", ["ref", "resource"])
@pytest.mark.parametrize("chief", ["c", "tf"])
def test_c_and_tensorflow_workers_in_one_job(cluster, start, tmp_path, chief, kind):
    """One C and one TensorFlow worker, either of them the chief: the same variables, every update the mean of both."""
    c = cluster(ps=2, workers=2)
    script = tmp_path / "worker.py"
    script.write_text(TF_WORKER)
    ours, theirs = (0, 1) if chief == "c" else (1, 0)

    def start_ours():
        return start(TOOL, "sync", c.target("worker", ours), ours, 2, 2, kind, *(["last_step=25"] if chief == "c" else []))

    def start_theirs():
        return start(sys.executable, script, c.target("worker", theirs), theirs, 2, 2, kind, 0 if chief == "c" else 25)

    first = (start_ours if chief == "c" else start_theirs)()
    assert first.ready.wait(60)
    second = (start_theirs if chief == "c" else start_ours)()
    got = {"first": first.finish(), "second": second.finish()}
    mine, other = (got["first"], got["second"]) if chief == "c" else (got["second"], got["first"])
    assert int(mine["global_step"][0]) >= 25
    assert int(mine["steps"][0]) >= 5 and int(other["steps"][0]) >= 5
    check(mine)
