"""Loops with arrays and lists: recurrent nets forward and backward, v1 and v2 control flow, against TensorFlow's own session."""
import numpy as np
import pytest
import tensorflow as tf

import both

tf1 = tf.compat.v1


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


def init(seed=7):
    return tf1.random_uniform_initializer(-0.4, 0.4, seed=seed)


def lstm(x, lengths, how):
    """Outputs and final state. how: "static", "dynamic", "reverse", "time_major"."""
    cell = tf1.nn.rnn_cell.LSTMCell(5, initializer=init(), use_peepholes=how == "reverse")
    if how == "static":
        out, state = tf1.nn.static_rnn(cell, tf.unstack(x, axis=1), dtype=tf.float32, sequence_length=lengths)
        return tf.stack(out, axis=1), state
    if how == "reverse":
        x = tf.reverse_sequence(x, lengths, seq_axis=1, batch_axis=0)
    if how == "time_major":
        out, state = tf1.nn.dynamic_rnn(cell, tf.transpose(x, [1, 0, 2]), sequence_length=lengths, dtype=tf.float32, time_major=True)
        return tf.transpose(out, [1, 0, 2]), state
    return tf1.nn.dynamic_rnn(cell, x, sequence_length=lengths, dtype=tf.float32)


@pytest.mark.asan
@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("how", ["static", "dynamic", "reverse", "time_major"])
def test_lstm_and_its_gradients(target, how, v2):
    if v2:
        tf1.enable_control_flow_v2()
    try:
        x = tf.constant(np.random.RandomState(3).randn(4, 6, 3).astype(np.float32))
        lengths = tf.constant([6, 2, 4, 1], tf.int64)
        out, state = lstm(x, lengths, how)
        loss = tf.reduce_sum(tf.square(out)) + tf.reduce_sum(state[0] * state[1])
        grads = tf1.gradients(loss, tf1.trainable_variables() + [x])
        both.same(target, [out, state, loss, grads], before=[tf1.global_variables_initializer()], times=2)
    finally:
        tf1.disable_control_flow_v2()


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
def test_lstm_trains(target, v2):
    """A few steps of a training program, variables on the ps."""
    if v2:
        tf1.enable_control_flow_v2()
    try:
        rng = np.random.RandomState(1)
        x = tf.constant(rng.randn(8, 5, 3).astype(np.float32))
        y = tf.constant(rng.randn(8, 4).astype(np.float32))
        cells = [tf1.nn.rnn_cell.GRUCell(4, kernel_initializer=init(3)), tf1.nn.rnn_cell.BasicRNNCell(4)]
        with tf1.variable_scope("net", initializer=init(5)):
            out, _ = tf1.nn.bidirectional_dynamic_rnn(cells[0], cells[1], x, dtype=tf.float32)
        loss = tf1.losses.mean_squared_error(y, out[0][:, -1] + out[1][:, 0])
        train = tf1.train.AdamOptimizer(0.01).minimize(loss)
        both.same(target, [loss, train], before=[tf1.global_variables_initializer()], times=8, rtol=1e-4)
    finally:
        tf1.disable_control_flow_v2()


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
def test_map_scan_fold(target, v2):
    if v2:
        tf1.enable_control_flow_v2()
    try:
        x = tf.constant(np.arange(12, dtype=np.float32).reshape(4, 3))
        m = tf.map_fn(lambda r: r * r + 1, x)
        s = tf.scan(lambda a, r: a * 0.5 + r, x)
        f = tf.foldl(lambda a, r: a + tf.reduce_sum(r), x, initializer=tf.constant(0.0))
        text = tf.map_fn(lambda t: tf.strings.join([t, "!"]), tf.constant(["a", "bc"]), fn_output_signature=tf.string)
        nested = tf.map_fn(lambda r: tf.map_fn(lambda e: e * e, r), x)
        grads = tf1.gradients([m, s, f, nested], [x])
        both.same(target, [m, s, f, text, nested, grads])
    finally:
        tf1.disable_control_flow_v2()


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
def test_conditions_in_loops(target, v2):
    """Gradients of a condition inside a loop keep what they need in lists of optional values."""
    if v2:
        tf1.enable_control_flow_v2()
    try:
        x = tf.constant([1.0, -2.0, 3.0])

        def body(i, v):
            return i + 1, tf.cond(tf.equal(i % 2, 0), lambda: v * v, lambda: tf.sin(v) * 2.0)

        _, v = tf.while_loop(lambda i, _: i < 4, body, [tf.constant(0), x])
        both.same(target, [v, tf1.gradients(v, x)])
    finally:
        tf1.disable_control_flow_v2()
