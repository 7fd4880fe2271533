"""Functions on other tasks that are named only when the step runs: RemoteCall with a fed target, between tasks of both kinds."""
import json
import time
import urllib.request

import numpy as np
import pytest
import tensorflow as tf

tf1 = tf.compat.v1
COMPARES = False
TASKS = ["/job:ps/replica:0/task:0", "/job:worker/replica:0/task:0", "/job:worker/replica:0/task:1"]
KINDS = [pytest.param("trn", "trn", id="ours", marks=pytest.mark.asan), pytest.param("tf", "trn", id="tf-ps"), pytest.param("trn", "tf", id="tf-workers", marks=pytest.mark.slow)]


def function(f, *specs):
    f.__name__ = "called"  # TensorFlow's tasks make node names of it and refuse those with <lambda>
    g = tf.function(f, input_signature=specs).get_concrete_function()
    g.add_to_graph()
    return g


def call(f, where, args, types):
    with tf.device("/job:worker/task:0"):
        return list(tf.raw_ops.RemoteCall(target=where, args=args, Tout=types, f=f))


def session(c, seconds=60):
    return tf1.Session(c.target(), config=tf1.ConfigProto(operation_timeout_in_ms=seconds * 1000))


@pytest.mark.parametrize("ps_kind,worker_kind", KINDS)
def test_fed_target(cluster, ps_kind, worker_kind):
    c = cluster(ps=1, workers=2, ps_kind=ps_kind, worker_kind=worker_kind)
    with tf.Graph().as_default():
        where = tf1.placeholder(tf.string, [])
        data = np.arange(6, dtype=np.float32).reshape(2, 3)
        f = function(lambda a, s: (tf.matmul(a, a, transpose_b=True), tf.strings.join([s, "!"]), tf.size(a)), tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([], tf.string))
        out = call(f, where, [data, "text"], [tf.float32, tf.string, tf.int32])
        other = call(function(lambda a: a - 1, tf.TensorSpec(None, tf.float32)), where, [data], [tf.float32])  # another one, by the same way

        # A queue on each task: who is called puts its own element there.
        for i, t in enumerate(TASKS):
            with tf.device(t):
                q = tf1.FIFOQueue(9, tf.int32, [], shared_name="mine")
                fill = q.enqueue(i)
                tf1.add_to_collection("fill", fill)
        take = function(lambda: tf.raw_ops.QueueDequeueV2(handle=tf.raw_ops.FIFOQueueV2(component_types=[tf.int32], shapes=[[]], capacity=9, shared_name="mine"), component_types=[tf.int32])[0])
        one = function(lambda x: x + take(), tf.TensorSpec([], tf.int32))
        taken = call(one, where, [10], [tf.int32])
        with session(c) as s:
            for t in TASKS * 2:
                for spelled in (t + "/device:CPU:0", t.replace("/replica:0", "") + "/cpu:0"):
                    a, b, n = s.run(out, {where: spelled})
                    np.testing.assert_array_equal(a, data @ data.T)
                    assert (b, n) == (b"text!", 6)
                    np.testing.assert_array_equal(s.run(other, {where: spelled})[0], data - 1)
            s.run(tf1.get_collection("fill"))
            for i, t in enumerate(TASKS):
                assert s.run(taken, {where: t + "/device:CPU:0"}) == [10 + i]
            with pytest.raises(tf.errors.OpError) as e:
                s.run(out, {where: "/job:ps/replica:0/task:7/device:CPU:0"})
            assert not isinstance(e.value, (tf.errors.DeadlineExceededError, tf.errors.UnavailableError))
            s.run(other, {where: TASKS[0] + "/device:CPU:0"})


@pytest.mark.parametrize("ps_kind,worker_kind", [KINDS[0], *(pytest.param(*k.values, id=k.id, marks=pytest.mark.slow) for k in KINDS[1:])])
def test_errors_and_the_end(cluster, ps_kind, worker_kind):
    c = cluster(ps=1, workers=2, ps_kind=ps_kind, worker_kind=worker_kind)
    with tf.Graph().as_default():
        where = tf1.placeholder(tf.string, [])

        def checked(x):
            with tf.control_dependencies([tf1.Assert(x > 0, ["not above zero:", x])]):
                return tf.identity(x)

        out = call(function(checked, tf.TensorSpec([], tf.int32)), where, [tf1.placeholder_with_default(-3, [])], [tf.int32])
        wait = function(lambda: tf.raw_ops.QueueDequeueV2(handle=tf.raw_ops.FIFOQueueV2(component_types=[tf.int32], shapes=[[]], shared_name="empty"), component_types=[tf.int32])[0])
        never = call(function(lambda x: x + wait(), tf.TensorSpec([], tf.int32)), where, [1], [tf.int32])
        with session(c) as s:
            for _ in range(2):
                with pytest.raises(tf.errors.InvalidArgumentError, match="not above zero"):
                    s.run(out, {where: TASKS[0] + "/device:CPU:0"})
            if worker_kind == "trn":  # the function waits over there; the step's end is its end (TensorFlow's worker would wait on)
                with pytest.raises(tf.errors.DeadlineExceededError):
                    s.run(never, {where: TASKS[0] + "/device:CPU:0"}, options=tf1.RunOptions(timeout_in_ms=2000))
    if ps_kind == "trn":  # nothing stays behind
        end = time.monotonic() + 60
        while True:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://{c.task('ps').address}/status.json", timeout=20) as r:
                task = json.load(r)["task"]
            if task["graphs"] == 0 and task["steps"]["live"] == 0:
                return
            assert time.monotonic() < end, (task["graphs"], task["steps"]["live"])
            time.sleep(0.2)
