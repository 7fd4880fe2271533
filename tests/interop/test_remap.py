"""Warm starts: vocabularies and matrices that changed their order, against TensorFlow's own session."""
import os

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import gen_checkpoint_ops as g

import both

tf1 = tf.compat.v1


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


def write(path, *lines, end="\n"):
    path.write_text("".join(x + end for x in lines))
    return str(path)


def test_vocabularies(target, tmp_path):
    new = write(tmp_path / "new", "knitting", "eminem", "mmr", "solar")
    old = write(tmp_path / "old", "solar", "knitting", "eminem", end="\r\n")
    twice = write(tmp_path / "twice", "a", "b", "a")
    empty = write(tmp_path / "empty")
    hole = write(tmp_path / "hole", "a", "", "b")
    f = g.generate_vocab_remapping
    for t in (
        f(new, old, 0, 4), f(new, old, 1, 2), f(new, old, 4, 0), f(new, old, 0, 4, old_vocab_size=2), f(new, old, 0, 4, old_vocab_size=3),
        f(old, new, 0, 3), f(new, new, 0, 4),
        f(new, old, 0, 5), f(new, old, 4, 1), f(new, old, 0, 4, old_vocab_size=4), f(new, twice, 0, 2), f(new, empty, 0, 2), f(new, hole, 0, 2),
        f(empty, old, 0, 0), f(str(tmp_path / "none"), old, 0, 1), f("", old, 0, 1),
    ):
        both.same(target, list(t))


def test_matrices(target, tmp_path):
    rng = np.random.RandomState(3)
    with tf1.Session(graph=tf.Graph()) as s:
        a = tf1.get_variable("a", initializer=rng.rand(6, 4).astype(np.float32), use_resource=False)
        p = tf1.get_variable("p", [7, 3], initializer=tf1.random_uniform_initializer(seed=1), partitioner=tf1.fixed_size_partitioner(3), use_resource=False)
        i = tf1.get_variable("i", initializer=np.arange(4, dtype=np.int32).reshape(2, 2), use_resource=False)
        v = tf1.get_variable("v", initializer=np.ones(3, np.float32), use_resource=False)
        s.run(tf1.global_variables_initializer())
        path = tf1.train.Saver([a, p, i, v]).save(s, str(tmp_path / "m"))
    f = g.load_and_remap_matrix
    none = np.zeros(0, np.int64)
    r = lambda *x: np.array(x, np.int64)
    init = lambda n: np.arange(n, dtype=np.float32)
    for most in (-1, 1, 2, 100):
        for t in (
            f(path, "a", r(2, 0, 5), none, [], 3, 4, most),
            f(path, "a", r(2, -1, 5), r(3, 1), init(2), 3, 2, most),
            f(path, "a", r(-1, -1), r(3, -1), init(4), 2, 2, most),
            f(path, "p", r(6, 3, -1, 0), r(2, 0), init(2), 4, 2, most),
            f(path, "p", r(), none, [], 0, 3, most),
            f(path, "a", r(2, 0, 5), none, init(1), 3, 4, most),
            f(path, "a", r(2, -1, 5), none, init(1), 3, 4, most),
        ):
            both.same(target, t)
    for t in (
        f(path, "a", r(2, 2), none, [], 2, 4), f(path, "a", r(2, 0), r(1, 1), [], 2, 2), f(path, "a", r(2), none, [], 2, 4),
        f(path, "a", r(2), r(1), [], 1, 2), f(path, "a", r(2), none, [], 1, 3), f(path, "i", r(0), none, [], 1, 2), f(path, "v", r(0), none, [], 1, 3),
        f(path, "zz", r(0), none, [], 1, 3), f(os.path.join(str(tmp_path), "x"), "a", r(0), none, [], 1, 4),
    ):
        both.same(target, t)
