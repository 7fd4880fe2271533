"""Sparse tensors that travel as single elements: serialised, or through a map and a batching queue."""
import numpy as np
import pytest
import tensorflow as tf

import both

tf1 = tf.compat.v1
raw = tf.raw_ops


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


def sparse(values=("a", "b", "c")):
    return tf1.SparseTensor([[0, 1], [0, 3], [2, 0]], list(values), [3, 4])


def test_there_and_back(target):
    for values in (("a", "", "ccc"), (1.5, 2.5, -1.0), (1, 2, 3)):
        sp = sparse(values)
        one = tf1.serialize_sparse(sp)
        many = tf1.serialize_many_sparse(sp)
        dtype = sp.values.dtype
        both.same(target, [tf.sparse.to_dense(raw_to_sp(raw.DeserializeSparse(serialized_sparse=one, dtype=dtype))),
                           tf.sparse.to_dense(tf1.deserialize_many_sparse(many, dtype, rank=1)),
                           tf.sparse.to_dense(tf1.deserialize_many_sparse(tf.gather(many, [2, 0]), dtype, rank=1))])
    bad = tf1.SparseTensor(tf1.placeholder_with_default(np.array([[2, 0], [0, 1]]), None), ["a", "b"], [3, 4])
    both.same(target, tf1.serialize_many_sparse(bad))


def raw_to_sp(r):
    return tf1.SparseTensor(r.sparse_indices, r.sparse_values, r.sparse_shape)


def test_tensorflow_reads_what_we_write(target):
    with tf1.Session(target) as s:
        ours = s.run(tf1.serialize_sparse(sparse()))
    with tf1.Session() as s:
        got = s.run(raw.DeserializeSparse(serialized_sparse=tf.constant(ours), dtype=tf.string))
    assert got.sparse_values.tolist() == [b"a", b"b", b"c"] and got.sparse_shape.tolist() == [3, 4]


def test_the_map(target):
    one = raw.AddSparseToTensorsMap(sparse_indices=sparse().indices, sparse_values=sparse().values, sparse_shape=sparse().dense_shape, shared_name="m")
    many = raw.AddManySparseToTensorsMap(sparse_indices=sparse().indices, sparse_values=sparse().values, sparse_shape=sparse().dense_shape, shared_name="m2")
    both.same(target, raw.TakeManySparseFromTensorsMap(sparse_handles=[one], dtype=tf.string, shared_name="m"), times=2)
    both.same(target, raw.TakeManySparseFromTensorsMap(sparse_handles=tf.reverse(many, [0]), dtype=tf.string, shared_name="m2"), times=2)
    both.same(target, raw.TakeManySparseFromTensorsMap(sparse_handles=tf.constant([99], tf.int64), dtype=tf.string, shared_name="m"))
    both.same(target, raw.TakeManySparseFromTensorsMap(sparse_handles=[one], dtype=tf.int64, shared_name="m"))


def test_batches_of_sparse_tensors(target):
    """tf.train.batch carries sparse tensors as handles."""
    n = tf1.train.range_input_producer(4, shuffle=False).dequeue()
    sp = tf1.SparseTensor([[0]], tf.reshape(n, [1]), [2])
    out = tf1.train.batch([sp], 3)
    with tf1.Session(target) as s:
        coord = tf1.train.Coordinator()
        threads = tf1.train.start_queue_runners(s, coord)
        for want in ([0, 1, 2], [3, 0, 1]):
            v = s.run(out)
            assert v.values.tolist() == want and v.dense_shape.tolist() == [3, 2]
        coord.request_stop()
        coord.join(threads, stop_grace_period_secs=20, ignore_live_threads=True)


def test_crossed_columns(target):
    """Feature columns of a wide model: crosses are the weights' numbers, so they must be TensorFlow's."""
    fc = tf1.feature_column
    features = {"a": tf.constant([["x", "y"], ["z", "x"]]), "b": tf.constant([[1, 2], [3, 1]], tf.int64), "c": tf.constant([[0.1], [7.5]])}
    bucket = fc.bucketized_column(fc.numeric_column("c"), [0.0, 1.0, 5.0])
    cross = fc.crossed_column([fc.categorical_column_with_vocabulary_list("a", ["x", "y", "z"]), "b", bucket], 97)
    emb = fc.embedding_column(cross, 4, initializer=tf1.random_uniform_initializer(-1, 1, seed=5))
    vocab = fc.indicator_column(fc.categorical_column_with_hash_bucket("a", 13))
    layer = fc.input_layer(features, [emb, vocab])
    both.same(target, layer, before=[tf1.global_variables_initializer(), tf1.tables_initializer()], times=2)
