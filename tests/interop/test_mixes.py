"""Two workers count up variables on the ps, whoever the tasks are: every increment arrives exactly once."""
import pathlib
import re
import subprocess
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from conftest import BIN, tf_server

COMPARES = False

STEPS = 60


def model(ps, worker):
    """Counters of all kinds, spread over the ps tasks; what is added is computed by the worker."""
    amount = tf.placeholder(tf.int64, [], name="amount")
    with tf.device(f"/job:worker/task:{worker}"):
        one = tf.identity(amount) - 1
    variables, ups = [], []
    for k, (shape, dtype, resource) in enumerate([([], tf.int64, True), ([], tf.int64, False), ([50], tf.float32, True), ([3, 4], tf.float64, False)]):
        with tf.device(f"/job:ps/task:{k % ps}"):
            v = tf.get_variable(f"v{k}", shape, dtype, initializer=tf.zeros_initializer(), use_resource=resource)
        delta = tf.fill(shape, tf.cast(one, dtype))
        variables.append(v)
        ups.append(v.assign_add(delta, use_locking=True).op)
    return amount, variables, tf.group(*ups), tf.global_variables_initializer()


def count(target, ps, worker, go, errors):
    try:
        with tf.Graph().as_default():
            amount, _, up, _ = model(ps, worker)
            with tf.Session(target, config=tf.ConfigProto(operation_timeout_in_ms=60000)) as s:
                go.wait(60)
                for _ in range(STEPS):
                    s.run(up, {amount: 2})
    except Exception as e:  # reported by the test's own thread
        errors.append(e)
        go.abort()


@pytest.mark.asan
@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.parametrize("mix", ["all ours", "TensorFlow workers", "TensorFlow ps"])
def test_counter(cluster, mix, ps):
    c = cluster(ps=ps, workers=2, start=False)
    theirs = {"TensorFlow workers": "worker", "TensorFlow ps": "ps"}.get(mix)
    servers = [tf_server(c.spec, theirs, i) for i in range(len(c.spec[theirs]))] if theirs else []
    for t in c.tasks:
        if t.job != theirs:
            t.start(wait=False)
    for t in c.tasks:
        if t.proc:
            t.wait_up()
    targets = [s.target for s in servers] if theirs == "worker" else [c.target("worker", i) for i in range(2)]
    _, variables, _, init = model(ps, 0)
    with tf.Session(targets[0], config=tf.ConfigProto(operation_timeout_in_ms=60000)) as s:
        s.run(init)
        go, errors = threading.Barrier(2), []
        threads = [threading.Thread(target=count, args=(targets[i], ps, i, go, errors)) for i in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not errors, errors[0]
        for v in s.run(variables):
            assert np.all(v == 2 * STEPS)


@pytest.mark.asan
@pytest.mark.parametrize("ps", [1, 2])
def test_from_c(cluster, ps):
    """The C example counts; a TensorFlow client sees its variable."""
    example = pathlib.Path(BIN).parent / "examples" / "counter"
    c = cluster(ps=ps, workers=2)
    r = subprocess.run([example, c.target("worker", 0), c.target("worker", 1)], capture_output=True, text=True, timeout=60)
    assert r.returncode == 0, r.stderr
    steps = int(re.search(r"#define STEPS (\d+)", (pathlib.Path(__file__).parents[2] / "examples" / "counter.c").read_text())[1])
    with tf.device("/job:ps/task:0"):
        v = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name="counter")
        now = tf.raw_ops.ReadVariableOp(resource=v, dtype=tf.int64)
    with tf.Session(c.target("worker", 1)) as s:
        assert s.run(now) == 2 * steps
