"""Staging maps. (TensorFlow's own crash when pieces are put, so what should come out is written down here.)"""
import pytest
import tensorflow as tf
from tensorflow.python.ops import data_flow_ops

tf1 = tf.compat.v1


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


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
