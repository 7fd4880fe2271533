"""Functions as values: For, ToBool, gradients of functions, effects in branches that nobody asks for; against TensorFlow's own session."""
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import function
from tensorflow.python.ops import cond_v2, functional_ops, gen_functional_ops

import both

tf1 = tf.compat.v1


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


@pytest.fixture(autouse=True)
def v1_graphs():
    with tf.Graph().as_default():
        yield


def test_for(target):
    @function.Defun(tf.int32, tf.float32, tf.int32)
    def add(i, v, w):
        return v + tf.cast(i, tf.float32), w * 2

    @function.Defun(tf.int32, tf.float32)
    def too_many(i, v):
        return v, v

    p = lambda x: tf1.placeholder_with_default(tf.constant(x, tf.int32), None)
    for a, b, c in ((0, 10, 1), (10, 0, -3), (3, 3, 1), (0, 10, -1), (10, 0, 1), (0, 5, 0), (4, 4, 0), (-5, 6, 4)):
        both.same(target, functional_ops.For(p(a), p(b), p(c), [tf.constant([.5, 2.]), tf.constant(1)], add))
    both.same(target, functional_ops.For(p([0]), p(3), p(1), [tf.constant(1.), tf.constant(1)], add))
    both.same(target, functional_ops.For(p(0), p(3), p(1), [tf.constant(1.)], too_many))


def test_truth(target):
    for v in (0, 1, -2, 0., .5, True, False, b"", b"x", np.int64(0), np.int8(3), np.zeros(3), np.zeros((0, 2)), np.zeros(1, bool)):
        both.same(target, gen_functional_ops.to_bool(tf.constant(v)))


@pytest.mark.asan
def test_a_branch_runs_for_the_results_that_are_asked_for(target):
    v = [tf1.get_variable("v%d" % i, initializer=7., use_resource=True) for i in range(4)]

    def effect(i, x):
        with tf.control_dependencies([v[i].assign(x)]):
            return tf.identity(x)

    yes = tf1.placeholder_with_default(True, [])
    a, b = cond_v2.cond_v2(yes, lambda: (effect(0, 1.), effect(1, 2.)), lambda: (effect(2, 3.), effect(3, 4.)))
    init = tf1.global_variables_initializer()
    for where in (target, ""):
        with tf1.Session(where) as s:
            for feed, fetch, want in ((True, a, [1, 7, 7, 7]), (True, b, [7, 2, 7, 7]), (False, a, [7, 7, 3, 7]), (False, [a, b], [7, 7, 3, 4])):
                s.run(init)
                s.run(fetch, {yes: feed})
                assert s.run(v) == want, (where, feed, fetch)


def test_branches_stay_ops_under_the_single_threaded_executor(target):
    yes = tf1.placeholder_with_default(True, [])
    r = cond_v2.cond_v2(yes, lambda: tf.constant(2.), lambda: tf.constant(3.))
    for kind, lowered in (("", True), ("SINGLE_THREADED_EXECUTOR", False)):
        config = tf1.ConfigProto()
        config.experimental.executor_type = kind
        meta = tf1.RunMetadata()
        with tf1.Session(target, config=config) as s:
            assert s.run(r, {yes: False}, tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE), meta) == 3
        names = [n.node_name for d in meta.step_stats.dev_stats for n in d.node_stats]
        assert any("switch" in n for n in names) == lowered, names


def test_functions_called_on_other_tasks(target):
    @function.Defun(tf.float32, tf.float32)
    def product(a, b):
        return a * b

    with tf.device("/job:ps/task:0"):
        a = tf1.get_variable("a", initializer=2., use_resource=False)
        b = tf1.get_variable("b", initializer=3., use_resource=False)
    with tf1.Session(target) as s:
        s.run(tf1.global_variables_initializer())
        for where in ("/job:worker/replica:0/task:1/cpu:0", "/job:ps/task:1", "/cpu:0", "/job:worker/replica:0/task:0/device:CPU:0"):
            with tf.device("/job:worker/task:0/cpu:0"):
                r = functional_ops.remote_call(args=[a, b], Tout=[tf.float32], f=product, target=where)[0] + 3.
            meta = tf1.RunMetadata()
            assert s.run(r, options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE), run_metadata=meta) == 9
            ran = [d.device for d in meta.step_stats.dev_stats for n in d.node_stats if "mul" in n.node_name.lower() and "send" not in n.node_name and "recv" not in n.node_name]
            assert any(where.replace("/replica:0", "").split("/cpu")[0].split("/device")[0] in d.replace("/replica:0", "") for d in ran), (where, ran)
