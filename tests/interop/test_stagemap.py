"""Staging maps, against TensorFlow's own session. (TensorFlow's crash when pieces of a tuple are put: what should come out then is written down here.)"""
import pytest
import tensorflow as tf
from tensorflow.python.ops import data_flow_ops

import both

tf1 = tf.compat.v1


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


@pytest.mark.asan
@pytest.mark.parametrize("ordered", [False, True])
def test_like_tensorflow(target, ordered):
    """Whole tuples in and out; parts out; sizes, capacities."""
    m = data_flow_ops.MapStagingArea([tf.float32, tf.int32], shapes=[[2], []], names=["x", "y"], ordered=ordered, shared_name="like_tf_%d" % ordered)
    small = data_flow_ops.MapStagingArea([tf.int32], shapes=[[]], ordered=ordered, capacity=2, shared_name="small_%d" % ordered)
    key = tf1.placeholder(tf.int64, [])
    v = tf.cast(key, tf.float32)
    put = m.put(key, {"x": tf.stack([v, -v]), "y": tf.cast(key, tf.int32)})
    take, peek, one, other, any_, size, part, clear = m.get(key), m.peek(key), m.get(key, ["x"]), m.get(key, ["y"]), m.get(), m.size(), m.incomplete_size(), m.clear()
    put2, take2, size2 = small.put(key, [tf.cast(key, tf.int32)], [0]), small.get(key), small.size()
    runs = [(put, 5), (put, 3), (put, 9), (size, 0), (part, 0), (peek, 5), (size, 0), (take, 3), (size, 0), (put, 5), (one, 5), (size, 0), (other, 5), (size, 0), (part, 0), (put, -2), (put, 2**40)]
    runs += [(any_, 0)] * 3 if ordered else [(take, 9), (take, -2), (peek, 2**40)]
    runs += [(size, 0), (put, 1), (clear, 0), ([size, part], 0), (put2, 1), (put2, 2), (size2, 0), (take2, 1), (put2, 3), (take2, 3), (take2, 2), (size2, 0)]

    def session(where):
        out = []
        with tf1.Session(where) as s:
            for fetch, k in runs:
                try:  # (nothing that waits: TensorFlow's staging cannot be cancelled)
                    out.append(s.run(fetch, {key: k}))
                except tf.errors.OpError as e:
                    out.append(type(e).__name__)
        return out

    want, got = session(""), session(target)
    for i, (w, g) in enumerate(zip(want, got)):
        if isinstance(w, str) or isinstance(g, str):
            assert w == g, f"run {i}: {g} and {w}"
        else:
            both.close(g, w, 0, 0, f"run {i}")


@pytest.mark.asan
@pytest.mark.parametrize("ordered", [False, True])
def test_whole_tuples_and_pieces(target, ordered):
    m = data_flow_ops.MapStagingArea([tf.float32, tf.int32], shapes=[[2], []], names=["x", "y"], ordered=ordered)
    key = tf1.placeholder(tf.int64, [])
    v = tf.cast(key, tf.float32)
    put = m.put(key, {"x": tf.stack([v, v]), "y": tf.cast(key, tf.int32)})
    put_x, put_y = m.put(key, {"x": tf.stack([v, -v])}), m.put(key, {"y": tf.constant(7)})
    take, peek, one, any_, size, part, clear = m.get(key), m.peek(key), m.get(key, ["x"]), m.get(), m.size(), m.incomplete_size(), m.clear()

    def d(got):
        return got[1] if isinstance(got, tuple) else got  # some calls give the key, too

    def x(got):
        return d(got)["x"].tolist()

    with tf1.Session(target, config=tf1.ConfigProto(operation_timeout_in_ms=30000)) as s:
        def run(f, k=0):
            return s.run(f, {key: k})

        for k in (5, 3, 9):
            run(put, k)
        assert run(size) == 3
        assert x(run(peek, 5)) == [5, 5] and run(size) == 3
        assert x(run(take, 3)) == [3, 3] and run(size) == 2
        run(put_x, 4)
        assert run([size, part]) == [2, 1]
        with pytest.raises(tf.errors.InvalidArgumentError):
            run(put_x, 4)
        run(put_y, 4)
        got = run(take, 4)
        assert x(got) == [4, -4] and d(got)["y"] == 7 and run(part) == 0
        assert x(run(one, 5)) == [5, 5] and run(size) == 2
        with pytest.raises(tf.errors.InvalidArgumentError):
            run(one, 5)
        run(clear)
        run(put, 8)
        run(put, 1)
        k, v = run(any_)
        assert (k == 1 or not ordered) and v["x"].tolist() == [k, k]
        run(clear)
        assert run([size, part]) == [0, 0]


def test_who_waits_is_served_or_cancelled(target):
    m = data_flow_ops.MapStagingArea([tf.int32], shapes=[[]], capacity=1)
    key = tf1.placeholder(tf.int64, [])
    put, take = m.put(key, [tf.cast(key, tf.int32)], [0]), m.get(key)
    with tf1.Session(target) as s:
        import threading
        got = []
        t = threading.Thread(target=lambda: got.append(s.run(take, {key: 2})))
        t.start()
        s.run(put, {key: 2})
        t.join(20)
        assert got and got[0][0] == 2
        s.run(put, {key: 1})
        with pytest.raises(tf.errors.DeadlineExceededError):
            s.run(put, {key: 3}, options=tf1.RunOptions(timeout_in_ms=300))
        with pytest.raises(tf.errors.DeadlineExceededError):
            s.run(take, {key: 3}, options=tf1.RunOptions(timeout_in_ms=300))
        assert s.run(take, {key: 1})[0] == 1
