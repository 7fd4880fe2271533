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


FUNCTIONS = [
    lambda x, y: 2 * x * x * x + 3 * x * y + 8, lambda x, y: tf.square(tf.square(x)) - y, lambda x, y: x / (1 + tf.abs(y)), lambda x, y: tf.exp(x) * tf.sin(y),
    lambda x, y: tf.tanh(x) + tf.sigmoid(y), lambda x, y: tf.sqrt(1 + tf.square(x)) * tf.cos(y), lambda x, y: tf.maximum(x, y) + tf.minimum(x, .3),
    lambda x, y: tf.reduce_sum(x * y, axis=[0], keepdims=True), lambda x, y: tf.reduce_mean(tf.square(x), axis=-1) + y[0, 0],
    lambda x, y: tf.matmul(x, y, transpose_b=True), lambda x, y: tf.matmul(x, y, transpose_a=True), lambda x, y: tf.matmul(x, tf.transpose(y)),
    lambda x, y: tf.nn.relu(x) + tf.nn.softplus(y), lambda x, y: tf.nn.softmax(x) * y, lambda x, y: tf.nn.log_softmax(x) * y,
    lambda x, y: tf.concat([x, y, x], 1), lambda x, y: tf.stack([x, y]), lambda x, y: tf.reshape(x, [-1]) * 2., lambda x, y: tf.add_n([x, y, x]),
    lambda x, y: tf.cast(tf.cast(x, tf.float64) * 2, tf.float32), lambda x, y: tf.math.log(1 + tf.square(x)) + tf.math.rsqrt(1 + tf.square(y)),
    lambda x, y: tf.pow(1 + tf.abs(x), y), lambda x, y: tf.expand_dims(x, 0) * tf.constant(3.), lambda x, y: tf.where(x > y, x, 2 * y),
    lambda x, y: tf.unstack(x, 2)[0] * 2, lambda x, y: tf.split(x, 3, 1)[1] * tf.split(y, 3, 1)[0], lambda x, y: tf.stop_gradient(x) * y,
    lambda x, y: x + tf.reduce_sum(y), lambda x, y: tf.math.divide_no_nan(x, y), lambda x, y: tf.math.squared_difference(x, y[0]),
    lambda x, y: tf.math.erf(x) + tf.math.lgamma(1 + tf.square(y)), lambda x, y: tf.constant(1.),
]


@pytest.mark.asan
def test_gradients_of_functions(target):
    rng = np.random.RandomState(4)
    a, b = (tf1.placeholder_with_default(rng.rand(2, 3).astype(np.float32) * 2 - 1, [2, 3]) for _ in range(2))
    for i, f in enumerate(FUNCTIONS):
        g = function.Defun(tf.float32, tf.float32, func_name="f%d" % i)(f)
        y, plain = g(a, b), f(a, b)
        y.set_shape(plain.shape)
        got = [y] + tf1.gradients(tf.sin(y), [a, b])
        want = [plain] + [tf.zeros_like(x) if d is None else tf.convert_to_tensor(d) for d, x in zip(tf1.gradients(tf.sin(plain), [a, b]), (a, b))]
        with tf1.Session(target) as s: # TensorFlow's own derivatives of functions fail for some of these
            for u, v in zip(s.run(got), s.run(want)):
                np.testing.assert_allclose(u, v, rtol=1e-5, atol=1e-5, err_msg="function %d" % i)


def test_gradients_of_functions_in_functions_and_loops(target):
    @function.Defun(tf.float32)
    def fourth(x):
        return tf.square(tf.square(x))

    @function.Defun(tf.float32, tf.float32)
    def outer(x, y):
        return fourth(x) * y + fourth(y)

    @function.Defun(tf.float32, tf.float32, tf.float32)
    def mine(x, y, d):
        return 10 * d, d * x

    @function.Defun(tf.float32, tf.float32, grad_func=mine)
    def told(x, y):
        return x * y

    @function.Defun(tf.float32)
    def slope(x):
        return functional_ops.Gradient([x, 1.0], fourth)[0]

    a, b = tf1.placeholder_with_default(1.5, []), tf1.placeholder_with_default(.5, [])
    both.same(target, tf1.gradients(outer(a, b), [a, b]))
    both.same(target, tf1.gradients(outer(a, a), [a]))
    both.same(target, tf1.gradients(outer(outer(a, b), b), [a, b]), rtol=1e-5)
    both.same(target, tf1.gradients(told(a, b), [a, b]))
    both.same(target, slope(a))
    loop = tf1.while_loop(lambda i, v: i < 2, lambda i, v: [i + 1, fourth(v)], [tf.constant(0), b], [tf.TensorShape(None)] * 2)[1]
    both.same(target, [loop] + tf1.gradients(loop, b))

    @function.Defun(tf.float32)
    def unknown(x):
        return tf.raw_ops.SoftsignGrad(gradients=x, features=x)

    with tf1.Session(target) as s:
        with pytest.raises(tf.errors.NotFoundError, match="No gradient defined for op: SoftsignGrad"):
            s.run(tf1.gradients(unknown(b), b)[0])


def test_gradient_of_a_function_with_constants_in_a_loop(target):
    """The constants of the function lie in the loop, too."""
    @function.Defun(tf.float32)
    def double(x):
        return x * 2.

    tf1.enable_control_flow_v2()
    try:
        x = tf.constant(1.)
        y = tf1.while_loop(lambda v: v < 5., lambda v: tf.ensure_shape(double(v), []), [x], maximum_iterations=100)
        with tf1.Session(target) as s:
            assert s.run([y, tf1.gradients(y, x)[0]]) == [8., 8.]
    finally:
        tf1.disable_control_flow_v2()


@pytest.fixture
def old_loops():
    tf1.disable_control_flow_v2()
    yield
    tf1.enable_control_flow_v2()


@pytest.mark.parametrize("choose", [False, True])
def test_loop_sees_what_it_assigns(target, old_loops, choose):
    """A read from outside of the loop is, for a loop that assigns the variable, a read of what the last iteration left; for others it is what it was."""
    v = tf1.get_variable("v", [2], initializer=tf1.constant_initializer(2), use_resource=False)
    w = tf1.get_variable("w", [2], initializer=tf1.constant_initializer(3), use_resource=False)

    def body(i, sum_):
        up = (lambda: tf1.assign(v, tf.square(v) - w / 4))
        done = tf1.cond(i >= 0, up, lambda: v) if choose else up()
        with tf.control_dependencies([done]):
            return i + 1, sum_ + tf.identity(w)

    loop = tf1.while_loop(lambda i, _: i < 4, body, (tf.constant(0), tf.zeros([2])))
    both.same(target, list(loop) + [tf.constant(1)], before=[tf1.global_variables_initializer()])
    with tf1.control_dependencies(loop):
        after = tf1.get_default_graph().get_tensor_by_name("v:0") + 0.0
    both.same(target, after, before=[tf1.global_variables_initializer()], rtol=1e-4)
