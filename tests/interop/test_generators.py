"""Generators that lie in a variable (tf.random.Generator): TensorFlow's bits, and where the generator stands afterwards."""
import numpy as np
import pytest
import tensorflow as tf

tf1 = tf.compat.v1
raw = tf.raw_ops


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


def on_both(target, build, state=(5, 1 << 40, -7)):
    """What build(variable) gives in two runs, or the error's code, and the variable after each."""
    said = []
    for t in ("", target):
        with tf.Graph().as_default(), tf.device("/job:ps/task:0" if t else None):
            v = tf1.get_variable("state", initializer=np.array(state, np.int64), use_resource=True)
            out = build(v.handle)
            with tf1.Session(t) as s:
                s.run(v.initializer)
                got = []
                for _ in range(2):
                    try:
                        got.append(s.run(out))
                    except tf.errors.OpError as e:
                        got.append(e.error_code)
                    got.append(s.run(v))
                said.append(got)
    return said


def same(target, build, **kw):
    theirs, ours = on_both(target, build, **kw)
    for a, b in zip(theirs, ours):
        np.testing.assert_array_equal(a, b)
    return ours


@pytest.mark.asan
@pytest.mark.parametrize("shape", ((), (1,), (3, 5), (0, 4), (1000,)), ids=str)
def test_same_bits(target, shape):
    shape = np.array(shape, np.int64)
    for dtype in (tf.half, tf.bfloat16, tf.float32, tf.float64):
        for op in (raw.StatefulUniform, raw.StatefulStandardNormalV2, raw.StatefulTruncatedNormal):
            a, _, b, _ = same(target, lambda h: op(resource=h, algorithm=np.int64(1), shape=shape, dtype=dtype))
            assert a.size == 0 or not np.array_equal(a, b)
    for dtype in (tf.int32, tf.int64, tf.uint32, tf.uint64):
        same(target, lambda h: raw.StatefulUniformFullInt(resource=h, algorithm=np.int64(3), shape=shape, dtype=dtype))
    for dtype in (np.int32, np.int64):
        same(target, lambda h: raw.StatefulUniformInt(resource=h, algorithm=np.int64(1), shape=shape, minval=dtype(-4), maxval=dtype(90)))
    n = np.concatenate([shape, [3]]).astype(np.int32)
    # Where the variable's buffer is shared, TensorFlow loses what this op does to it: only the first numbers are comparable.
    theirs, ours = on_both(target, lambda h: raw.StatefulRandomBinomial(resource=h, algorithm=np.int64(1), shape=n, counts=np.array([5., 60., 7.]), probs=np.array([.2, .5, .9]), dtype=tf.float64))
    np.testing.assert_array_equal(theirs[0], ours[0])
    assert shape.size < 1 or not shape.all() or not np.array_equal(ours[1], ours[3])


def test_skipping(target):
    for delta in (0, 1, 1 << 50):
        same(target, lambda h: raw.RngSkip(resource=h, algorithm=np.int64(1), delta=np.int64(delta)), state=((1 << 62), 3, 4))
        same(target, lambda h: raw.RngReadAndSkip(resource=h, alg=np.int32(1), delta=np.uint64(delta)), state=(-2, -1, 4))


def test_what_is_no_generator(target):
    ask = dict(algorithm=np.int64(1), shape=[3], dtype=tf.float32)
    same(target, lambda h: raw.StatefulUniform(resource=h, **ask), state=(1, 2))
    same(target, lambda h: raw.StatefulUniform(resource=h, **ask), state=((1, 2, 3), (4, 5, 6)))
    same(target, lambda h: raw.StatefulUniform(resource=h, **dict(ask, algorithm=np.int64(2))))
    same(target, lambda h: raw.StatefulUniform(resource=h, **dict(ask, algorithm=np.int64(9))))
    same(target, lambda h: raw.StatefulUniform(resource=h, **dict(ask, shape=tf1.placeholder_with_default(np.array([-3]), [1]))))
    same(target, lambda h: raw.StatefulUniformInt(resource=h, algorithm=np.int64(1), shape=[2], minval=5, maxval=5))
    same(target, lambda h: raw.StatefulRandomBinomial(resource=h, algorithm=np.int64(1), shape=[2, 2], counts=[1., 2., 3.], probs=.5))


def test_numbers_that_nobody_foretells(target):
    with tf.Graph().as_default(), tf1.Session(target) as s:
        for dtype in (tf.int32, tf.uint32, tf.int64, tf.uint64):
            x = raw.NonDeterministicInts(shape=[2, 3], dtype=dtype)
            a, b = s.run(x), s.run(x)
            assert a.shape == (2, 3) and a.dtype == dtype.as_numpy_dtype and not np.array_equal(a, b)


def test_generator(target):
    """The Python class, in the graph of another program's kind."""
    said = []
    for t in ("", target):
        with tf.Graph().as_default():
            g = tf.random.Generator.from_seed(1234)
            out = [g.normal([4]), g.uniform([2, 2], maxval=9, dtype=tf.int32), g.uniform_full_int([3]), g.truncated_normal([5])]
            with tf1.Session(t) as s:
                s.run(tf1.global_variables_initializer())
                said.append([s.run(o) for o in out for _ in range(2)])
    for a, b in zip(*said):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("state", [(1, 5, 1 << 40, -7), (3, 0, 0, 9), (2, 1, 2, 3), (7, 1, 2, 3), (1, 1, 2), ()], ids=str)
def test_algorithm_in_the_variable(target, state):
    """The first StatefulStandardNormal, which graphs of versions below 29 may hold."""
    said = []
    for t in "", target:
        with tf.Graph().as_default() as g:
            v = tf1.get_variable("state", initializer=np.array(state, np.int64), use_resource=True, validate_shape=False)
            tf.group(v.initializer, name="init")
            tf1.placeholder(tf.int64, name="shape")
        graph = g.as_graph_def()
        for dtype in (tf.half, tf.bfloat16, tf.float32, tf.float64):
            n = graph.node.add(name=dtype.name, op="StatefulStandardNormal", input=["state", "shape"])
            n.attr["dtype"].type, n.attr["shape_dtype"].type = dtype.as_datatype_enum, tf.int64.as_datatype_enum
        graph.versions.producer = 28
        graph.versions.min_consumer = 0
        with tf.Graph().as_default(), tf1.Session(t) as s:
            tf.import_graph_def(graph, name="")
            s.run("init")
            got = []
            for shape in (), (3, 5), (0, 4), (1000,), (-1,), (2, 2):
                for dtype in ("float16", "bfloat16", "float32", "float64"):
                    try:
                        got.append(s.run(dtype + ":0", {"shape:0": np.array(shape, np.int64)}))
                    except tf.errors.OpError as e:
                        got.append(e.error_code)
                    got.append(s.run("state/Read/ReadVariableOp:0"))
            said.append(got)
    for a, b in zip(*said):
        np.testing.assert_array_equal(a, b)
