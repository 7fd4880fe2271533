"""tf.CriticalSection: one at a time, over steps, sessions and failures; who waits holds no thread and can be cancelled."""
import threading

import pytest
import tensorflow as tf
from tensorflow.python.ops import gen_resource_variable_ops as gen

import both

tf1 = tf.compat.v1


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


def in_turn(where, *fetches):
    """Results of one session."""
    out = []
    with tf1.Session(where) as s:
        for f in fetches:
            try:
                out.append(s.run(f))
            except tf.errors.OpError as e:
                out.append(both.Failed(e.error_code, e.message))
    return out


def counter(cs, v, by=1):
    """Reads, waits for what was read, writes: loses counts unless it is alone."""
    def body():
        old = v.read_value()
        with tf.control_dependencies([old]):
            new = tf.reduce_sum(tf.ones([1000], tf.int32)) // 1000 * by + old
            with tf.control_dependencies([v.assign(new)]):
                return tf.identity(old)
    return cs.execute(body)


@pytest.mark.asan
def test_like_tensorflow(target):
    cs = tf.CriticalSection(shared_name="like")
    v = tf1.get_variable("v", initializer=0, use_resource=True)
    many = tf.sort(tf.stack([counter(cs, v) for _ in range(30)]))
    in_loop = tf1.while_loop(lambda i, j: i < 50, lambda i, j: (i + 1, j + cs.execute(lambda: i * 2)), [0, 0], parallel_iterations=10)
    in_cond = tf.cond(v > 10, lambda: counter(cs, v), lambda: -1)
    fails = cs.execute(lambda: tf1.check_numerics(tf.math.log(-1.0), "bad"))
    both.agree(in_turn(target, v.initializer, many, in_loop, in_cond, fails, in_cond, v.read_value()), in_turn("", v.initializer, many, in_loop, in_cond, fails, in_cond, v.read_value()))


@pytest.mark.asan
def test_two_sessions_many_steps(target):
    cs = tf.CriticalSection(shared_name="two")
    v = tf1.get_variable("v", initializer=0, use_resource=True)
    add = counter(cs, v)
    with tf1.Session(target) as a, tf1.Session(target) as b:
        a.run(v.initializer)

        def work(s):
            for _ in range(40):
                s.run(add)
        threads = [threading.Thread(target=work, args=(s,)) for s in (a, b, a, b)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert a.run(v) == 160


@pytest.mark.asan
def test_waiting_is_cancelled_and_failures_unlock(target):
    m = gen.mutex_v2(shared_name="m")
    lock = gen.mutex_lock(m)
    use = gen.consume_mutex_lock(lock)
    q = tf.queue.FIFOQueue(1, [tf.int32], [[]], shared_name="gate")
    with tf.control_dependencies([lock]):
        gate = q.dequeue()
    with tf.control_dependencies([gate]):
        slow = gen.consume_mutex_lock(lock)
        with tf.control_dependencies([tf.debugging.Assert(gate > 0, ["no"])]):
            bad = gen.consume_mutex_lock(lock)
    x = tf1.placeholder(tf.int32, [])
    put, size = q.enqueue(x), q.size()
    with tf1.Session(target) as s:
        got = []

        def hold(op):
            try:
                got.append(s.run(op))
            except tf.errors.OpError as e:
                got.append(type(e))
        for op, value, end in ((slow, 1, None), (bad, 0, tf.errors.InvalidArgumentError)):
            t = threading.Thread(target=hold, args=(op,))
            t.start()
            while True:  # until it has the mutex
                try:
                    s.run(use, options=tf1.RunOptions(timeout_in_ms=300))
                except tf.errors.DeadlineExceededError:
                    break
            s.run(put, {x: value})
            t.join()
            assert got.pop() == end
            s.run(use)
        # a holder that is cancelled
        with pytest.raises(tf.errors.DeadlineExceededError):
            s.run(slow, options=tf1.RunOptions(timeout_in_ms=300))
        s.run(use)


@pytest.mark.asan
def test_errors(target):
    m = gen.mutex_v2(shared_name="e")
    twice = tf.identity(gen.mutex_lock(m))
    runs = [
        gen.consume_mutex_lock(tf.raw_ops.OptionalNone()),
        gen.consume_mutex_lock(tf.stack([tf.raw_ops.OptionalNone()])),
        gen.mutex_lock(tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[])).op,
        gen.consume_mutex_lock(twice),
    ]
    both.agree([both.run(target, r)[0] for r in runs], [both.run("", r)[0] for r in runs])
