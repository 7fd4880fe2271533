"""Candidate samplers draw what TensorFlow draws, run by run."""
import numpy as np
import pytest
import tensorflow as tf

import both

tf1 = tf.compat.v1
raw = tf.raw_ops


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


def truth(n, rng=9, num_true=1):
    return tf.constant(np.random.RandomState(n).randint(0, rng, (n, num_true)), tf.int64)


def test_samplers(target):
    for unique in (False, True):
        for rng, n in ((9, 5), (9, 9), (1000, 64), (64, 10), (100000, 300)):
            t = truth(6, rng, 2)
            for seed in ((3, 4), (0, 1)):
                kw = dict(true_classes=t, num_true=2, num_sampled=n, unique=unique, range_max=rng, seed=seed[0], seed2=seed[1])
                both.same(target, [raw.UniformCandidateSampler(**kw), raw.LogUniformCandidateSampler(**kw), raw.LearnedUnigramCandidateSampler(**kw),
                                   raw.ThreadUnsafeUnigramCandidateSampler(**kw)], times=4)
    both.same(target, raw.AllCandidateSampler(true_classes=truth(4), num_true=1, num_sampled=12, unique=True))


def test_fixed_unigrams(target, tmp_path):
    vocab = tmp_path / "vocab.csv"
    vocab.write_text("".join(f"word{i},{(i * 7) % 11 + 1}.5\n" for i in range(20)))
    weights = [1.0, 4.0, 0.25, 9.0, 2.0, 2.0, 7.5]
    for unique in (False, True):
        for kw in (dict(unigrams=weights, range_max=7), dict(unigrams=weights, range_max=7, distortion=0.75), dict(unigrams=weights, range_max=9, num_reserved_ids=2),
                   dict(unigrams=weights, range_max=4, num_shards=2, shard=0), dict(vocab_file=str(vocab), range_max=20), dict(vocab_file=str(vocab), range_max=23, num_reserved_ids=3, distortion=0.5),
                   dict(vocab_file=str(vocab), range_max=19), dict(range_max=5), dict(vocab_file=str(vocab), unigrams=weights, range_max=7)):
            both.same(target, raw.FixedUnigramCandidateSampler(true_classes=truth(3, 4), num_true=1, num_sampled=4, unique=unique, seed=11, seed2=5, **kw), times=3)


def test_what_samplers_refuse(target):
    p = tf1.placeholder_with_default
    kw = dict(num_sampled=5, unique=True, seed=1)
    for t, more in ((p(np.array([[9]]), None), dict(num_true=1, range_max=9)), (p(np.array([[-1]]), None), dict(num_true=1, range_max=9)),
                    (p(np.array([1]), None), dict(num_true=1, range_max=9)), (p(np.array([[1]]), None), dict(num_true=2, range_max=9)),
                    (p(np.array([[1]]), None), dict(num_true=1, range_max=3))):
        both.same(target, raw.LogUniformCandidateSampler(true_classes=tf.cast(t, tf.int64), **kw, **more))


def test_accidental_hits(target):
    t = tf.constant([[1, 5], [2, 2], [7, 1]], tf.int64)
    both.same(target, raw.ComputeAccidentalHits(true_classes=t, sampled_candidates=tf.constant([5, 9, 1, 2, 5], tf.int64), num_true=2))
    both.same(target, raw.ComputeAccidentalHits(true_classes=t, sampled_candidates=tf.constant([], tf.int64), num_true=2))
    hidden = tf1.placeholder_with_default(t, None)
    both.same(target, raw.ComputeAccidentalHits(true_classes=hidden, sampled_candidates=tf.constant([4], tf.int64), num_true=1))


@pytest.mark.asan
def test_sampled_losses_train(target):
    """Word vectors with NCE and sampled softmax: the loss of every step is TensorFlow's."""
    tf1.set_random_seed(42)
    rng = np.random.RandomState(0)
    ids, labels = tf.constant(rng.randint(0, 50, 16)), tf.constant(rng.randint(0, 50, (16, 1)), tf.int64)
    emb = tf1.get_variable("emb", [50, 8], initializer=tf1.random_uniform_initializer(-1, 1, seed=3))
    w = tf1.get_variable("w", [50, 8], initializer=tf1.random_uniform_initializer(-1, 1, seed=4))
    b = tf1.get_variable("b", [50], initializer=tf1.zeros_initializer())
    x = tf.nn.embedding_lookup(emb, ids)
    nce = tf.reduce_mean(tf.nn.nce_loss(w, b, labels, x, num_sampled=7, num_classes=50))
    soft = tf.reduce_mean(tf1.nn.sampled_softmax_loss(w, b, labels, x, num_sampled=9, num_classes=50))
    train = tf1.train.GradientDescentOptimizer(0.2).minimize(nce + soft)
    both.same(target, [nce, soft, train], before=[tf1.global_variables_initializer()], times=8, rtol=1e-4)
