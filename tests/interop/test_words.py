"""Programs tell errors apart by their words, TensorFlow's own tests above all: these words must be in our messages too."""
import re

import numpy as np
import pytest
import tensorflow as tf

import both

tf1 = tf.compat.v1
raw = tf.raw_ops


def i64(*x):
    return tf.constant(x, tf.int64)


def fed(x):
    """What shape inference cannot see."""
    return tf1.placeholder_with_default(tf.constant(x), None)


def dense_table(**kw):
    return raw.MutableDenseHashTableV2(**{**dict(empty_key=tf.constant(0, tf.int64), deleted_key=tf.constant(-1, tf.int64), value_dtype=tf.int64), **kw})


def find(keys, **kw):
    return raw.LookupTableFindV2(table_handle=dense_table(**kw), keys=keys, default_value=tf.constant(5, tf.int64))


def insert(keys, values):
    return raw.LookupTableInsertV2(table_handle=dense_table(), keys=keys, values=values)


def empty_array():
    a = raw.TensorArrayV3(size=0, dtype=tf.float32)
    return raw.TensorArrayGatherV3(handle=a[0], indices=np.zeros(0, np.int32), flow_in=a[1], dtype=tf.float32)


def empty_concat():
    a = raw.TensorArrayV3(size=0, dtype=tf.float32)
    return raw.TensorArrayConcatV3(handle=a[0], flow_in=a[1], dtype=tf.float32)[0]


def remap(rows, cols):
    return raw.LoadAndRemapMatrix(ckpt_path="/nowhere", old_tensor_name="w", row_remapping=tf.constant(rows, tf.int64), col_remapping=tf.constant(cols, tf.int64),
                                  initializing_values=np.zeros((0, 1), np.float32), num_rows=1, num_cols=1)


def example(shape):
    x = tf.train.Example()
    x.features.feature["a"].bytes_list.value.extend([b"a", b"b"])
    return tf.io.parse_single_example(x.SerializeToString(), {"a": tf.io.FixedLenFeature(shape, tf.string)})


def dense_add(n, n_values, rank, at=0):
    return raw.SparseTensorDenseAdd(a_indices=tf.fill([n, rank], np.int64(at)), a_values=np.zeros(n_values, np.float32), a_shape=i64(3, 4), b=np.ones((3, 4), np.float32))


def split(*rows):
    return raw.SparseSplit(split_dim=np.int64(1), indices=i64(*rows), values=np.ones(len(rows), np.float32), shape=i64(3, 5), num_split=2)[0]


def sparse_map():
    kw = dict(sparse_values=np.ones(1, np.float32), shared_name="ranks")
    a = raw.AddSparseToTensorsMap(sparse_indices=i64([0, 0]), sparse_shape=i64(5, 6), **kw)
    b = raw.AddSparseToTensorsMap(sparse_indices=i64([0, 0, 0]), sparse_shape=i64(1, 1, 1), **kw)
    return raw.TakeManySparseFromTensorsMap(sparse_handles=tf.stack([a, b]), dtype=tf.float32, shared_name="ranks")


CASES = [
    (lambda: find(i64([11, 0], [12, 1])), "Expected key shape"),
    (lambda: insert(i64([11, 0], [12, 1]), i64([11, 0], [12, 1])), "Expected key shape"),
    (lambda: find(i64(3, 4), empty_key=i64(0, 0), deleted_key=i64(0, 1)), "Expected key shape"),
    (lambda: dense_table(deleted_key=i64(1, 2)), "Empty and deleted keys must have same shape"),
    (lambda: dense_table(deleted_key=np.int64(0)), "Empty and deleted keys cannot be equal"),
    (lambda: dense_table(initial_num_buckets=12), "Number of buckets must be"),
    (empty_array, "TensorArray has size zero, but element shape <unknown> is not fully defined. Currently only static shapes are supported when packing zero-size TensorArrays."),
    (empty_concat, "TensorArray has size zero, but element_shape_except0 <unknown> is not fully defined. Currently only static shapes are supported when concatenating"),
    (lambda: raw.TensorArrayConcatV2(handle=["a", "b"], flow_in=0.1, dtype=tf.int32)[0], "Container .* does not exist"),
    (lambda: remap(0, [3]), "tensor must be 1-D"),
    (lambda: example([1])["a"], "Can't parse serialized Example"),
    (lambda: dense_add(17, 5, 2), "Dimensions 17 and 5 are not compatible"),
    (lambda: dense_add(17, 17, 4), "Dimensions 4 and 2 are not compatible"),
    (lambda: dense_add(17, 17, 2, 7), "invalid index"),
    (lambda: raw.DeserializeSparse(serialized_sparse=["a", "b", "c"], dtype=tf.int32)[0], "Could not parse serialized proto"),
    (lambda: split([0, 0], [1, 10]), "out of bounds"),
    (lambda: split([0, 0], [-1, 2]), "out of bounds"),
    (lambda: raw.NthElement(input=fed(5), n=0), "at least rank 1 but is rank 0"),
    (lambda: raw.NthElement(input=[[0.1, 0.2]], n=fed(2)), "must have last dimension > n = 2"),
    (lambda: tf.concat([fed([2]), fed(3)], fed(0)), r"Can't concatenate scalars \(use tf.stack instead\)"),
    (lambda: tf.concat([fed(2), fed([3])], fed(0)), r"Can't concatenate scalars \(use tf.stack instead\)"),
    (lambda: tf.tile([7], fed(2)), "Expected multiples to be 1-D"),
    (lambda: raw.SparseToDense(sparse_indices=fed(1), output_shape=fed(4), sparse_values=7, default_value=0), "output_shape must be rank 1"),
    (lambda: tf.unravel_index(fed(5), [0x10000000, 0x10000000]), "Input dims product is causing integer overflow"),
    (lambda: raw.InplaceUpdate(x=[[1.]], i=[0, 1], v=[[10.]]), "i and x shape doesn't match"),
    (lambda: raw.AsString(input=[1], shortest=True), "scientific and shortest"),
    (lambda: raw.AsString(input=[1.0], fill="ab"), "Fill string must be one or fewer"),
    (lambda: raw.GuaranteeConst(input=raw.VarHandleOp(dtype=tf.float32, shape=[])), "cannot be a resource variable"),
    (sparse_map, r"Inconsistent rank across SparseTensors: rank prior to SparseTensor\[1\] was: 3 but rank of SparseTensor\[1\] is: 4"),
]


@pytest.mark.parametrize("where", ["ours", "TensorFlow"])
def test_words(fresh, where):
    target = fresh.target("worker") if where == "ours" else ""
    off = tf1.ConfigProto(graph_options=tf1.GraphOptions(optimizer_options=tf1.OptimizerOptions(opt_level=tf1.OptimizerOptions.L0)))
    off.graph_options.rewrite_options.disable_meta_optimizer = True
    bad = []
    for build, words in CASES:
        with tf.Graph().as_default():
            fetch = build()
            with tf1.Session(target, config=off) as s:
                try:
                    s.run(fetch if isinstance(fetch, tf.Tensor) else tf.nest.flatten(fetch))
                    bad.append((words, "no error"))
                except tf.errors.OpError as e:
                    if not re.search(words, e.message):
                        bad.append((words, both.Failed(e.error_code, e.message[-300:])))
    assert not bad
