"""An iterator's position in a checkpoint: saved by tf.train.Saver, restored in another session, graph and server. Elements go on where they were, as with TensorFlow."""
import os

import numpy as np
import pytest
import tensorflow as tf

import both
from test_raw_datasets import D, I64, W0, i64, op, rng, target  # noqa: F401 (target is a fixture)

tf1 = tf.compat.v1


def floor(x):
    return tf.math.floordiv(i64(12), x - 3)


PIPELINES = {
    "range": lambda tmp: D.range(9),
    "batch": lambda tmp: D.range(20).batch(3),
    "repeat": lambda tmp: D.range(3).repeat(4),
    "map": lambda tmp: D.range(9).map(lambda x: x * x),
    "parallel_map": lambda tmp: D.range(9).map(lambda x: x * x, num_parallel_calls=2).prefetch(2),
    "filter": lambda tmp: D.range(30).filter(lambda x: tf.equal(x % 3, 1)),
    "flat_map": lambda tmp: D.range(5).flat_map(lambda x: D.range(x)),
    "interleave": lambda tmp: D.range(5).interleave(lambda x: D.range(x), cycle_length=2, num_parallel_calls=2),
    "shuffle": lambda tmp: D.range(9).shuffle(4, seed=5).repeat(3),
    "shuffle_same": lambda tmp: D.range(9).shuffle(4, seed=5, reshuffle_each_iteration=False).repeat(3),
    "shuffle_and_repeat": lambda tmp: D.range(5).apply(tf1.data.experimental.shuffle_and_repeat(4, 3, seed=5)),
    "random": lambda tmp: tf.data.experimental.RandomDataset(seed=4).take(9),
    "cache": lambda tmp: D.range(5).cache().repeat(3),
    "cache_file": lambda tmp: D.range(5).cache(os.path.join(tmp, "cache")).repeat(3),
    "unique": lambda tmp: D.range(20).map(lambda x: x % 7).unique(),
    "window": lambda tmp: D.range(12).window(3, 2).flat_map(lambda w: w),
    "scan": lambda tmp: D.range(9).scan(i64(1), lambda s, x: (s + x, s)),
    "zip": lambda tmp: D.zip((D.range(9), D.range(20, 30))).map(lambda x, y: x + y),
    "rebatch": lambda tmp: D.range(20).batch(4).rebatch([3, 2]),
    "errors": lambda tmp: D.range(9).map(floor),
    "files": lambda tmp: tf1.data.TextLineDataset([os.path.join(tmp, "a.txt"), os.path.join(tmp, "b.txt")]),
}


def session(target, tmp, make, pulls, restore=False, save=True, init=True):
    """One life of a program: restore, pull, save."""
    with tf.Graph().as_default():
        tf1.set_random_seed(7)
        with tf1.device(W0 if target else None):
            it = tf1.data.make_initializable_iterator(make(tmp))
            nxt = it.get_next()
            saver = tf1.train.Saver([tf1.data.experimental.make_saveable_from_iterator(it)])
        out = []
        with tf1.Session(target, config=tf1.ConfigProto(operation_timeout_in_ms=60000, isolate_session_state=True)) as s:
            if init:
                s.run(it.initializer)
            if restore:
                saver.restore(s, os.path.join(tmp, "ckpt"))
            for _ in range(pulls):
                try:
                    out.append(s.run(nxt))
                except tf.errors.OpError as e:
                    out.append(both.Failed(e.error_code, e.message))
            if save:
                saver.save(s, os.path.join(tmp, "ckpt"), write_meta_graph=False)
        return out


def lives(target, tmp, make):
    tmp.mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp / name).write_text("".join(f"{name} {i}\n" for i in range(4)))
    tmp = str(tmp)
    out = session(target, tmp, make, 0)
    for n in (4, 1, 5, 9, 2):
        out += session(target, tmp, make, n, restore=True)
    return out


@pytest.mark.asan
@pytest.mark.parametrize("name", PIPELINES)
def test_goes_on_where_it_was(target, tmp_path, name):
    theirs = "cache" if name == "cache_file" else name  # the same elements; TensorFlow does not always find again what it has written of a file
    both.agree(lives(target, tmp_path / "ours", PIPELINES[name]), lives("", tmp_path / "tf", PIPELINES[theirs]))


@pytest.mark.parametrize("name", ["shuffle", "random"])
def test_seeds_that_nobody_gave(target, tmp_path, name):
    """They are part of the position: what comes after a restart is what would have come."""
    make = {"shuffle": lambda tmp: D.range(100).shuffle(50).repeat(), "random": lambda tmp: tf.data.experimental.RandomDataset()}[name]
    a = session(target, str(tmp_path), make, 30)
    b = session(target, str(tmp_path), make, 120, restore=True, save=False)
    c = session(target, str(tmp_path), make, 120, restore=True, save=False)
    assert b == c
    assert sorted(a + b[:70]) == list(range(100)) if name == "shuffle" else len(set(a + b)) > 140


def test_a_program_without_a_position(target, tmp_path):
    """Neither is an iterator that nobody has set, and nothing else is a position."""
    for side in (target, ""):
        for restore in (False, True):
            with pytest.raises(tf.errors.FailedPreconditionError):
                session(side, str(tmp_path), PIPELINES["range"], 0, init=False, restore=restore)
            session(side, str(tmp_path), PIPELINES["range"], 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="random parts|nothing was saved"):
        session(target, str(tmp_path), PIPELINES["shuffle"], 3)
        session(target, str(tmp_path), PIPELINES["range"], 0, restore=True)
    with pytest.raises(tf.errors.InvalidArgumentError):
        session(target, str(tmp_path), PIPELINES["range"], 3)
        session(target, str(tmp_path), PIPELINES["shuffle"], 0, restore=True)

    def build():
        h = op("IteratorV2", shared_name="", container="", **I64)
        return [op("MakeIterator", dataset=rng(3), iterator=h), op("DeserializeIterator", resource_handle=h, serialized=tf.reshape(rng(3), [1]))]

    with tf.Graph().as_default(), tf1.device(W0):
        init, load = build()
        with tf1.Session(target) as s:
            s.run(init)
            with pytest.raises(tf.errors.InvalidArgumentError, match="position"):
                s.run(load)


def test_state_outside(target, tmp_path):
    """By default a pipeline with variables or random numbers in its functions is not saved; who wants it anyhow says so. (What they did is done again on the way.)"""
    def run(t, policy, f):
        with tf.Graph().as_default():
            with tf1.device(W0 if t else None):
                v = tf1.get_variable("v", initializer=i64(3), use_resource=True)
                it = tf1.data.make_initializable_iterator(D.range(9).map(lambda x: f(x, v)).batch(2).flat_map(lambda b: D.from_tensor_slices(b)))
                saver = tf1.train.Saver([tf1.data.experimental.make_saveable_from_iterator(it, **policy)])
            with tf1.Session(t) as s:
                s.run([v.initializer, it.initializer])
                try:
                    saver.save(s, str(tmp_path / "state"), write_meta_graph=False)
                except tf.errors.FailedPreconditionError:
                    return "refused"

    functions = [lambda x, v: x + 1, lambda x, v: x + v, lambda x, v: x + tf.random.uniform([], 0, 9, tf.int64)]
    for policy in ({}, {"external_state_policy": "warn"}, {"external_state_policy": "ignore"}):
        for n, f in enumerate(functions):
            assert run(target, policy, f) == run("", policy, f) == ("refused" if n and not policy else None)


def test_a_file_that_is_gone(target, tmp_path):
    """An error that the first walk did not have is the restore's error, not an element less."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("one\ntwo\n")
    session(target, str(tmp_path), PIPELINES["files"], 3)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(tf.errors.NotFoundError):
        session(target, str(tmp_path), PIPELINES["files"], 1, restore=True)


def test_lists_in_checkpoints(target, tmp_path):
    """Variants that both know are read by both."""
    def run(t, what):
        with tf.Graph().as_default():
            with tf1.device(W0 if t else None):
                path = str(tmp_path / "lists")
                if what == "save":
                    l = op("TensorListFromTensor", tensor=tf.constant([[1.0, 2.0], [3.0, 4.0]]), element_shape=[2])
                    f = op("SaveV2", prefix=path, tensor_names=["l", "n", "x"], shape_and_slices=["", "", ""], tensors=[l, tf.stack([l, l]), tf.constant(7)])
                else:
                    l, n, x = op("RestoreV2", prefix=path, tensor_names=["l", "n", "x"], shape_and_slices=["", "", ""], dtypes=[tf.variant, tf.variant, tf.int32])
                    stack = lambda v: op("TensorListStack", input_handle=v, element_shape=[2], element_dtype=tf.float32)
                    f = [stack(l), stack(n[1]), x]
            with tf1.Session(t) as s:
                return s.run(f)

    for writer, reader in ((target, ""), ("", target), (target, target)):
        run(writer, "save")
        a, b, x = run(reader, "restore")
        np.testing.assert_array_equal(a, [[1, 2], [3, 4]])
        np.testing.assert_array_equal(b, a)
        assert x == 7
