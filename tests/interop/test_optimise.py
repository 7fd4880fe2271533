"""What the master rewrites: the same bits with and without, TensorFlow's values, and switched off as TensorFlow's grappler is."""
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import rewriter_config_pb2

import both

tf1 = tf.compat.v1
RNG = np.random.RandomState(5)
OFF = rewriter_config_pb2.RewriterConfig.OFF


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


def config(**off):
    c = tf1.ConfigProto(operation_timeout_in_ms=60000)
    for k, v in off.items():
        setattr(c.graph_options.rewrite_options, k, v)
    return c


def l0():
    c = config()
    c.graph_options.optimizer_options.opt_level = tf1.OptimizerOptions.L0
    return c


def nodes(target, fetches, feed=None, cfg=None, init=True):
    """Values, and the names of the nodes that ran."""
    meta = tf1.RunMetadata()
    with tf1.Session(target, config=cfg or config()) as s:
        if init:
            s.run(tf1.global_variables_initializer())
        v = s.run(fetches, feed, options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE), run_metadata=meta)
    return v, {n.node_name for d in meta.step_stats.dev_stats for n in d.node_stats}


def placeholder(x):
    p = tf1.placeholder(x.dtype, [None] * x.ndim)
    return p, {p: x}


def special(shape):
    """With the values that careless rules lose."""
    x = RNG.randn(*shape).astype(np.float32)
    x.flat[: 5] = [-0.0, 0.0, np.nan, np.inf, -np.inf]
    return x


ACTIVATIONS = {"none": lambda x: x, "relu": tf.nn.relu, "relu6": tf.nn.relu6, "elu": tf.nn.elu, "leaky": lambda x: tf.nn.leaky_relu(x, 0.3),
               "tanh": tf.tanh, "sigmoid": tf.sigmoid}


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("what", ["matmul", "matmul_tb", "matmul_add", "conv", "conv_add", "conv_valid"])
def test_fusion(target, what, act):
    bias = tf1.get_variable("b", [7], initializer=tf1.random_normal_initializer(seed=2), use_resource=True)
    if what.startswith("matmul"):
        x, feed = placeholder(RNG.randn(33, 20).astype(np.float32))
        tb = what == "matmul_tb"
        w = tf1.get_variable("w", [7, 20] if tb else [20, 7], initializer=tf1.random_normal_initializer(seed=1), use_resource=True)
        y = tf.matmul(x, w, transpose_b=tb, name="product")
    else:
        x, feed = placeholder(RNG.randn(3, 9, 8, 5).astype(np.float32))
        w = tf1.get_variable("w", [3, 3, 5, 7], initializer=tf1.random_normal_initializer(seed=1), use_resource=True)
        y = tf.nn.conv2d(x, w, 2 if what == "conv_valid" else 1, "VALID" if what == "conv_valid" else "SAME", name="product")
    y = tf.add(y, bias, name="sum") if what.endswith("add") else tf.nn.bias_add(y, bias, name="sum")
    y = ACTIVATIONS[act](y)
    grads = tf1.gradients(tf.reduce_sum(y * y), [w, bias, x])
    both.same(target, [y, grads], feed, before=[tf1.global_variables_initializer()], rtol=1e-4, atol=1e-4)
    fused, ran = nodes(target, [y], feed)
    assert "product" not in ran and ("sum" in ran) == (act == "none")
    for off in (config(remapping=OFF), config(disable_meta_optimizer=True), l0()):
        plain, ran = nodes(target, [y], feed, off)
        assert {"product", "sum"} <= ran
        assert plain[0].tobytes() == fused[0].tobytes()


def test_fusion_leaves_what_others_use(target):
    x, feed = placeholder(RNG.randn(6, 5).astype(np.float32))
    w = tf1.get_variable("w", [5, 4], initializer=tf1.random_normal_initializer(seed=1), use_resource=True)
    b = tf1.get_variable("b", [4], initializer=tf1.random_normal_initializer(seed=2), use_resource=True)
    m = tf.matmul(x, w, name="product")
    s = tf.nn.bias_add(m, b, name="sum")
    y = tf.nn.relu(s)
    both.same(target, [m, y], feed, before=[tf1.global_variables_initializer()])
    both.same(target, [s, y], feed, before=[tf1.global_variables_initializer()])
    assert "product" in nodes(target, [m, y], feed)[1]
    assert "sum" in nodes(target, [s, y], feed)[1]
    with tf.control_dependencies([s]):
        z = tf.identity(x)
    assert "sum" in nodes(target, [y, z], feed)[1]


def test_fusion_keeps_errors(target):
    x, feed = placeholder(RNG.randn(6, 5).astype(np.float32))
    w, fw = placeholder(RNG.randn(4, 3).astype(np.float32))
    b, fb = placeholder(RNG.randn(3).astype(np.float32))
    both.same(target, tf.nn.relu(tf.nn.bias_add(tf.matmul(x, w), b)), {**feed, **fw, **fb})
    fw[w] = RNG.randn(5, 4).astype(np.float32)  # here TensorFlow's fused kernel reads past the bias
    with tf1.Session(target) as s, pytest.raises(tf.errors.InvalidArgumentError, match="bias"):
        s.run(tf.nn.relu(tf.nn.bias_add(tf.matmul(x, w), b)), {**feed, **fw, **fb})


def test_fusion_in_loops_and_branches(target):
    x, feed = placeholder(RNG.randn(4, 4).astype(np.float32))
    w = tf1.get_variable("w", [4, 4], initializer=tf1.random_normal_initializer(0, 0.4, seed=1), use_resource=True)
    b = tf1.get_variable("b", [4], initializer=tf1.random_normal_initializer(seed=2), use_resource=True)
    layer = lambda h: tf.tanh(tf.nn.bias_add(tf.matmul(h, w), b))
    looped = tf.while_loop(lambda i, h: i < 5, lambda i, h: (i + 1, layer(h)), (0, x))[1]
    chosen = tf.cond(tf.reduce_sum(x) > 0, lambda: layer(x), lambda: layer(-x))
    grads = tf1.gradients(tf.reduce_sum(looped) + tf.reduce_sum(chosen), [w, b, x])
    both.same(target, [looped, chosen, grads], feed, before=[tf1.global_variables_initializer()], rtol=1e-4)


ONE, ZERO = lambda *s: tf.ones(s or []), lambda *s: tf.zeros(s or [])

# name -> (what is computed from a [2,3,4] of special values, is a node named "rule" gone from ours?)
RULES = {
    "times one": (lambda x: tf.multiply(x, ONE(), name="rule"), True),
    "one times": (lambda x: tf.multiply(ONE(), x, name="rule"), True),
    "times ones": (lambda x: tf.multiply(x, ONE(2, 3, 4), name="rule"), True),
    "times ones that broadcast": (lambda x: tf.multiply(x, ONE(5, 1, 3, 4), name="rule"), False),
    "times zero": (lambda x: tf.multiply(tf.clip_by_value(tf.where(tf.math.is_nan(x), ONE(2, 3, 4), x), 1., 9.), ZERO(), name="rule"), False),
    "by one": (lambda x: tf.divide(x, ONE(), name="rule"), None),
    "minus zero": (lambda x: tf.subtract(x, ZERO(), name="rule"), True),
    "plus zero": (lambda x: tf.add(x, ZERO(), name="rule"), False),
    "plus minus zero": (lambda x: tf.add(x, tf.constant(-0.0), name="rule"), True),
    "to the first": (lambda x: tf.pow(x, ONE(), name="rule"), True),
    "integers plus zero": (lambda x: tf.add(tf.cast(tf.clip_by_value(x, -9, 9), tf.int32), 0, name="rule"), True),
    "minus minus": (lambda x: tf.negative(tf.negative(x), name="rule"), True),
    "not not": (lambda x: tf.logical_not(tf.logical_not(x > 0), name="rule"), True),
    "relu relu": (lambda x: tf.nn.relu(tf.nn.relu(x), name="rule"), True),
    "abs abs": (lambda x: tf.abs(tf.abs(x), name="rule"), True),
    "floor floor": (lambda x: tf.floor(tf.floor(x), name="rule"), True),
    "wide and back": (lambda x: tf.cast(tf.cast(x, tf.float64), tf.float32, name="rule"), True),
    "narrow and back": (lambda x: tf.cast(tf.cast(x, tf.float16), tf.float32, name="rule"), False),
    "same shape": (lambda x: tf.reshape(x, [2, 3, 4], name="rule"), True),
    "other shape": (lambda x: tf.reshape(tf.reshape(x, [6, 4]), [4, 6], name="rule"), False),
    "transposed twice": (lambda x: tf.transpose(tf.transpose(x, [2, 0, 1]), [1, 2, 0], name="rule"), True),
    "transposed otherwise": (lambda x: tf.transpose(tf.transpose(x, [2, 0, 1]), [2, 0, 1], name="rule"), False),
    "not transposed": (lambda x: tf.transpose(x, [0, 1, 2], name="rule"), True),
    "once": (lambda x: tf.tile(x, [1, 1, 1], name="rule"), True),
    "twice": (lambda x: tf.tile(x, [1, 2, 1], name="rule"), False),
    "no padding": (lambda x: tf.pad(x, [[0, 0]] * 3, name="rule"), True),
    "all of it": (lambda x: tf.slice(x, [0, 0, 0], [2, -1, 4], name="rule"), True),
    "part of it": (lambda x: tf.slice(x, [0, 1, 0], [2, -1, 4], name="rule"), False),
    "same width": (lambda x: tf.broadcast_to(x, [2, 3, 4], name="rule"), True),
    "one term": (lambda x: tf.raw_ops.AddN(inputs=[x], name="rule"), True),
    "over nothing": (lambda x: tf.reduce_sum(tf.cast(x > 0, tf.int32), [], name="rule"), True),
    "over one": (lambda x: tf.reduce_max(tf.reshape(tf.cast(x > 0, tf.int32), [1, 24]), 0, keepdims=True, name="rule"), True),
    "floats over one": (lambda x: tf.reduce_sum(tf.reshape(x, [1, 24]), 0, keepdims=True, name="rule"), False),
}


@pytest.mark.parametrize("rule", RULES)
def test_arithmetic(target, rule):
    make, gone = RULES[rule]
    flat = tf1.placeholder(tf.float32, [24])
    y = make(tf.reshape(flat, [2, 3, 4]))
    feed = {flat: special((24,))}
    y = tf.identity(tf.stack([y, y]), name="end")  # not the rule's own node is fetched
    both.same(target, y, feed)
    on, ran = nodes(target, y, feed, init=False)
    if gone is not None:
        assert ("rule" not in ran) == gone
    for off in (config(arithmetic_optimization=OFF), config(disable_meta_optimizer=True)):
        plain, ran = nodes(target, y, feed, off, init=False)
        assert gone is None or "rule" in ran
        assert plain.tobytes() == on.tobytes()


@pytest.mark.parametrize("shape", [(6, 4), (2, 6, 4)], ids=["matrix", "batch"])
def test_transposes_go_into_products(target, shape):
    p = tf1.placeholder(tf.float32, [48 if len(shape) == 3 else 24])
    x, feed = tf.reshape(p, shape), {p: RNG.randn(int(np.prod(shape))).astype(np.float32)}
    perm = [1, 0] if len(shape) == 2 else [0, 2, 1]
    y = tf.identity(tf.matmul(tf.transpose(x, perm, name="turn"), x)), tf.identity(tf.matmul(x, tf.transpose(x, perm, name="turn2")))
    both.same(target, y, feed)
    on, ran = nodes(target, y, feed, init=False)
    assert not {"turn", "turn2"} & ran
    plain, ran = nodes(target, y, feed, config(arithmetic_optimization=OFF), init=False)
    assert "turn" in ran  # the other one is the same
    both.close(on, plain, 1e-6, 1e-6)


@pytest.mark.parametrize("resource", (False, True))
def test_shape_of_an_uninitialised_variable(target, resource):
    """Known beforehand, but who asks for nothing else asks whether the variable is there."""
    with tf.Graph().as_default():
        v = tf1.get_variable("v", initializer=[1.0, 2.0], use_resource=resource)
        ask = [tf.raw_ops.Rank(input=v), tf.raw_ops.Shape(input=v), tf.raw_ops.Size(input=v)]
        with tf1.Session(target, config=config()) as s:
            for r in ask:
                with pytest.raises(tf.errors.FailedPreconditionError):
                    s.run(r)
            s.run(v.initializer)
            assert [np.asarray(x).tolist() for x in s.run(ask)] == [1, [2], 2]


OPTIMIZERS = {"sgd": lambda: tf1.train.GradientDescentOptimizer(0.1), "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
              "adam": lambda: tf1.train.AdamOptimizer(0.01), "adagrad": lambda: tf1.train.AdagradOptimizer(0.1), "adadelta": lambda: tf1.train.AdadeltaOptimizer(0.5),
              "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.01), "centered": lambda: tf1.train.RMSPropOptimizer(0.01, centered=True), "ftrl": lambda: tf1.train.FtrlOptimizer(0.1),
              "proximal": lambda: tf1.train.ProximalAdagradOptimizer(0.1, l1_regularization_strength=0.01), "gate_none": lambda: tf1.train.GradientDescentOptimizer(0.1)}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_products_that_are_gradients(target, kind):
    """A dense layer's gradient goes straight into its variable: the same bits as without, TensorFlow's values; not where somebody else wants the gradient."""
    x, feed = placeholder(RNG.rand(100, 400).astype(np.float32))
    ws = [tf1.get_variable(f"w{i}", s, initializer=tf1.random_normal_initializer(seed=i, stddev=0.05), use_resource=True) for i, s in enumerate(([400, 300], [300, 350], [350, 10]))]
    h = tf.nn.relu(tf.matmul(x, ws[0]))
    h = tf.nn.relu(tf.matmul(h, ws[1]))
    loss = tf.reduce_mean(tf.square(tf.matmul(h, ws[2]) - 1.0))
    o = OPTIMIZERS[kind]()
    grads = o.compute_gradients(loss, gate_gradients=o.GATE_NONE if kind == "gate_none" else o.GATE_OP)
    train = o.apply_gradients(grads, name="train")

    def trained(target, cfg, fetch=(), traced=True):
        meta, ran = tf1.RunMetadata(), set()
        with tf1.Session(target, config=cfg) as s:
            s.run(tf1.global_variables_initializer())
            for _ in range(3):
                s.run([train, loss, *fetch], feed, options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE) if traced else None, run_metadata=meta if traced else None)
            ran = {n.timeline_label.split(" = ")[-1].split("(")[0] for d in meta.step_stats.dev_stats for n in d.node_stats}
            return s.run(tf1.global_variables()), ran

    fused, ran = trained(target, config())
    assert "_MatMulUpdate" in ran, ran
    plain, ran = trained(target, config(remapping=OFF))
    assert "_MatMulUpdate" not in ran
    for f, p in zip(fused, plain):
        assert f.tobytes() == p.tobytes()
    later, _ = trained(target, config(), traced=False)  # the answer comes before the updates are made
    assert all(f.tobytes() == p.tobytes() for f, p in zip(later, plain))
    seen, ran = trained(target, config(), [g for g, _ in grads])
    assert "_MatMulUpdate" not in ran
    assert all(f.tobytes() == p.tobytes() for f, p in zip(seen, plain))
    theirs, _ = trained("", None)
    for f, t in zip(fused, theirs):
        np.testing.assert_allclose(f, t, rtol=1e-4, atol=1e-5)


def test_pooled_relu(target):
    """The gradients of max pooling and of the Relu before it are one node: the same bits as two, TensorFlow's values."""
    x, feed = placeholder(RNG.rand(4, 12, 12, 3).astype(np.float32) - 0.5)
    w = tf.constant(RNG.rand(3, 3, 3, 8).astype(np.float32) - 0.5)
    y = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME")), 2, 2, "VALID")
    grads = tf.gradients(tf.reduce_sum(y * y), [x, w])

    def run(target, cfg):
        meta = tf1.RunMetadata()
        with tf1.Session(target, config=cfg) as s:
            got = s.run(grads, feed, options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE), run_metadata=meta)
        return got, {n.timeline_label.split(" = ")[-1].split("(")[0] for d in meta.step_stats.dev_stats for n in d.node_stats}

    one, ran = run(target, config())
    assert "MaxPoolGrad" in ran and "ReluGrad" not in ran, ran
    two, ran = run(target, config(remapping=OFF))
    assert "ReluGrad" in ran, ran
    theirs, _ = run("", None)
    for a, b, c in zip(one, two, theirs):
        assert a.tobytes() == b.tobytes()
        np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-5)


def test_updates_that_are_owed(target):
    """A step is answered while its last updates are still to be made. Whoever looks sees them: another session at once, the next step, a second update, one that reads rows."""
    x, feed = placeholder(RNG.rand(100, 500).astype(np.float32))
    w = tf1.get_variable("w", [500, 400], initializer=tf1.random_normal_initializer(seed=1, stddev=0.1), use_resource=True)
    loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
    train = tf1.train.MomentumOptimizer(1.0, 0.9).minimize(loss)
    rows, add, whole = tf.gather(w, [0, 499]), w.assign_add(tf.ones_like(w)), w.read_value()

    def path(cfg):
        seen = []
        with tf1.Session(target, config=cfg) as s, tf1.Session(target, config=cfg) as other:
            s.run(tf1.global_variables_initializer())
            for _ in range(20):
                s.run(train, feed)
                seen.append(other.run(whole))
                s.run(train, feed)
                seen.append(other.run(rows))
                seen.append(s.run([train, loss], feed)[1])
                s.run(train, feed)
                seen.append(s.run(add))
        return seen

    plain = path(config(remapping=OFF))
    assert len({p.tobytes() for p in plain}) == len(plain)
    for a, b in zip(path(config()), plain):
        assert a.tobytes() == b.tobytes()
