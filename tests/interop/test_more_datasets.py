"""Datasets that cut, group, sample and end: elements, their order and how they end must be TensorFlow's. How they are compared is in test_raw_datasets.py."""
import numpy as np
import pytest
import tensorflow as tf

import both
from test_raw_datasets import D, I64, fn, i64, op, plain, rng, same, steps, target, walk  # noqa: F401 (target is a fixture)

tf1 = tf.compat.v1
V = dict(output_types=[tf.int64], output_shapes=[[None]])


def batches(n, size):
    return D.range(n).batch(size)._variant_tensor


def ragged(*sizes):
    """Vectors 0 … n-1."""
    return D.from_tensor_slices(i64(list(sizes))).map(tf.range)._variant_tensor


def failing(n, at):
    return D.range(n).map(lambda x: tf.math.floordiv(i64(12), x - at))


def rebatch(d, n, experimental=False):
    return op("ExperimentalRebatchDataset" if experimental else "RebatchDataset", input_dataset=d, num_replicas=i64(n), **V)


def resize(d, sizes, drop=False, kw=V):
    return op("RebatchDatasetV2", input_dataset=d, batch_sizes=sizes if isinstance(sizes, tf.Tensor) else i64(sizes), drop_remainder=drop, **kw)


def slide(d, size, shift, stride, experimental=False, **kw):
    return op("ExperimentalSlidingWindowDataset" if experimental else "SlidingWindowDataset", input_dataset=d, window_size=i64(size), window_shift=i64(shift), window_stride=i64(stride), **V, **kw)


VECTORS = {
    "Rebatch": lambda: rebatch(batches(7, 4), 2),
    "Rebatch_more_replicas": lambda: rebatch(batches(7, 2), 5),
    "Rebatch_uneven": lambda: rebatch(batches(8, 4), 3),
    "Rebatch_ragged": lambda: rebatch(ragged(3, 0, 5), 2),
    "Rebatch_scalars": lambda: rebatch(rng(3), 2),
    "Rebatch_0": lambda: rebatch(batches(4, 2), 0),
    "ExperimentalRebatch": lambda: rebatch(batches(7, 4), 2, True),
    "RebatchV2": lambda: resize(batches(11, 4), [3]),
    "RebatchV2_turns": lambda: resize(batches(20, 4), [3, 1, 0, 5]),
    "RebatchV2_scalar": lambda: resize(batches(7, 4), 2),
    "RebatchV2_drop": lambda: resize(batches(11, 4), [3, 2], True),
    "RebatchV2_large": lambda: resize(batches(11, 4), [100]),
    "RebatchV2_large_drop": lambda: resize(batches(11, 4), [100], True),
    "RebatchV2_empties": lambda: resize(ragged(2, 0, 0, 3, 1), [2, 3]),
    "RebatchV2_scalars": lambda: resize(rng(3), [2]),
    "RebatchV2_matrix": lambda: resize(batches(4, 2), [[2]]),
    "RebatchV2_error": lambda: resize(failing(9, 4).batch(1)._variant_tensor, [3]),
    "SlidingWindow": lambda: slide(rng(9), 3, 2, 1),
    "SlidingWindow_gaps": lambda: slide(rng(20), 2, 5, 1),
    "SlidingWindow_stride": lambda: slide(rng(12), 3, 1, 2),
    "SlidingWindow_keep": lambda: slide(rng(8), 3, 3, 2, drop_remainder=False),
    "SlidingWindow_all": lambda: slide(rng(5), 9, 1, 1, drop_remainder=False),
    "SlidingWindow_none": lambda: slide(rng(5), 9, 1, 1),
    "SlidingWindow_error": lambda: slide(failing(9, 4)._variant_tensor, 2, 2, 1),
    "SlidingWindow_error_between": lambda: slide(failing(9, 3)._variant_tensor, 2, 4, 1),
    "SlidingWindow_shapes": lambda: slide(ragged(1, 1, 2, 2, 2), 2, 1, 1),
    "SlidingWindow_size_0": lambda: slide(rng(5), 0, 1, 1),
    "SlidingWindow_shift_0": lambda: slide(rng(5), 1, 0, 1),
    "SlidingWindow_stride_0": lambda: slide(rng(5), 1, 1, 0),
    "ExperimentalSlidingWindow": lambda: slide(rng(9), 3, 2, 1, True),
}


@pytest.mark.asan
@pytest.mark.parametrize("name", VECTORS)
def test_batches(target, name):
    walk(target, lambda kw: VECTORS[name](), shapes=[None if name.endswith("_shapes") else (None,)])


@pytest.mark.asan
def test_rebatch_of_several_components(target):
    kw = dict(output_types=[tf.int64, tf.string], output_shapes=[[None], [None, None]])
    two = lambda: D.range(7).map(lambda x: (x, tf.fill([2], tf.strings.as_string(x)))).batch(3)._variant_tensor
    walk(target, lambda _: op("RebatchDataset", input_dataset=two(), num_replicas=i64(2), **kw), types=[tf.int64, tf.string], shapes=[(None,), (None, None)])
    walk(target, lambda _: resize(two(), [2, 0, 3], kw=kw), types=[tf.int64, tf.string], shapes=[(None,), (None, None)])
    # components of different lengths, of different shapes: to be joined they must agree
    odd = lambda: D.range(2).map(lambda x: (tf.fill([2], x), tf.fill([3, 1], "s")))._variant_tensor
    walk(target, lambda _: op("RebatchDataset", input_dataset=odd(), num_replicas=i64(2), **kw), types=[tf.int64, tf.string], shapes=[(None,), (None, None)])
    walk(target, lambda _: resize(odd(), [2], kw=kw), types=[tf.int64, tf.string], shapes=[(None,), (None, None)])


@pytest.mark.parametrize("name", ["DenseToSparseBatchDataset", "ExperimentalDenseToSparseBatchDataset"])
@pytest.mark.parametrize("sizes, size, row", [([3, 0, 2, 1, 4], 2, [-1]), ([3, 0, 2], 2, [5]), ([3, 4], 2, [3]), ([1], 4, [-1, 2]), ([], 2, [-1]), ([1], 0, [-1]), ([1, 2], 2, [-2])])
def test_dense_to_sparse_batch(target, name, sizes, size, row):
    kw = dict(output_types=[tf.variant], output_shapes=[None])

    def build():
        h = op("IteratorV2", shared_name="", container="", **kw)
        d = op(name, input_dataset=D.from_tensor_slices(np.array(sizes, np.int64)).map(tf.range)._variant_tensor, batch_size=i64(size), row_shape=i64(row), **kw)
        nxt = list(op("DeserializeSparse", serialized_sparse=op("IteratorGetNext", iterator=h, **kw)[0], dtype=tf.int64))
        return [op("MakeIterator", dataset=plain(d, kw), iterator=h)] + [nxt] * 4

    same(target, build)


def test_dense_to_sparse_batch_of_matrices(target):
    kw = dict(output_types=[tf.variant], output_shapes=[None])

    def build():
        h = op("IteratorV2", shared_name="", container="", **kw)
        d = D.range(5).map(lambda x: tf.fill([x % 3, x % 2 + 1], tf.strings.as_string(x)))
        d = op("DenseToSparseBatchDataset", input_dataset=d._variant_tensor, batch_size=i64(3), row_shape=i64(-1, 4), **kw)
        nxt = list(op("DeserializeSparse", serialized_sparse=op("IteratorGetNext", iterator=h, **kw)[0], dtype=tf.string))
        return [op("MakeIterator", dataset=plain(d, kw), iterator=h)] + [nxt] * 3

    same(target, build)


def reducer(d, key, init=lambda k: k * 100, reduce=lambda s, x: s + x, final=lambda s: s * 2, name="GroupByReducerDataset"):
    two = [(tf.int64, []), (tf.int64, [])]
    return op(name, input_dataset=d, key_func_other_arguments=[], init_func_other_arguments=[], reduce_func_other_arguments=[], finalize_func_other_arguments=[i64(7)],
              key_func=fn(key), init_func=fn(init), reduce_func=fn(reduce, *two), finalize_func=fn(lambda s, c: final(s) + c, *two), **I64)


def unique(values, dtype, name="UniqueDataset"):
    d = D.from_tensor_slices(tf.constant(values, dtype))
    return op(name, input_dataset=d._variant_tensor, output_types=[dtype], output_shapes=[None])


def sampling(rate, seed, seed2):
    return op("SamplingDataset", input_dataset=rng(30), rate=rate, seed=i64(seed), seed2=i64(seed2), **I64)


SCALARS = {
    "GroupByReducer": lambda: reducer(rng(10), lambda x: 3 - x % 4),
    "GroupByReducer_empty": lambda: reducer(rng(0), lambda x: x),
    "GroupByReducer_key": lambda: reducer(rng(4), lambda x: tf.cast(x, tf.int32)),
    "GroupByReducer_keys": lambda: reducer(rng(4), lambda x: tf.stack([x, x])),
    "GroupByReducer_reduce_fails": lambda: reducer(rng(6), lambda x: x % 2, reduce=lambda s, x: s + tf.math.floordiv(i64(12), x - 3)),
    "GroupByReducer_finalize_fails": lambda: reducer(rng(6), lambda x: x % 3, final=lambda s: tf.math.floordiv(i64(12), s - 105)),
    "ExperimentalGroupByReducer": lambda: reducer(rng(10), lambda x: x % 4, name="ExperimentalGroupByReducerDataset"),
    "Unique": lambda: unique([3, 1, 3, 3, 2, 1, 4], tf.int64),
    "ExperimentalUnique": lambda: unique([3, 1, 3, 3, 2, 1, 4], tf.int64, "ExperimentalUniqueDataset"),
    "Unique_two": lambda: op("UniqueDataset", input_dataset=D.range(3).map(lambda x: (x, x))._variant_tensor, **I64),
    "Unique_float": lambda: op("UniqueDataset", input_dataset=D.range(3).map(lambda x: tf.cast(x, tf.float32))._variant_tensor, **I64),
    "Sampling": lambda: sampling(0.5, 4, 2),
    "Sampling_all": lambda: sampling(1.0, 4, 2),
    "Sampling_none": lambda: sampling(0.0, 4, 2),
    "ThreadPool": lambda: op("ThreadPoolDataset", input_dataset=rng(4), thread_pool=op("ThreadPoolHandle", num_threads=2, display_name="p"), **I64),
    "ThreadPool_0": lambda: op("ThreadPoolDataset", input_dataset=rng(4), thread_pool=op("ThreadPoolHandle", num_threads=0, display_name="p"), **I64),
    "ThreadPool_negative": lambda: op("ThreadPoolDataset", input_dataset=rng(4), thread_pool=op("ThreadPoolHandle", num_threads=-1, display_name="p"), **I64),
    "ExperimentalThreadPool": lambda: op("ExperimentalThreadPoolDataset", input_dataset=rng(4),
                                         thread_pool=op("ExperimentalThreadPoolHandle", num_threads=1, display_name="p", shared_name="q"), **I64),
    "List": lambda: op("ListDataset", tensors=[i64(5), i64(7), i64(6)], **I64),
    "List_type": lambda: op("ListDataset", tensors=[i64(5), tf.constant(7)], **I64),
}


@pytest.mark.asan
@pytest.mark.parametrize("name", SCALARS)
def test_scalars(target, name):
    walk(target, lambda kw: SCALARS[name](), n=24 if "Sampling" in name else 8)


@pytest.mark.parametrize("values, dtype", [([3, 1, 3, 2, 2], tf.int32), (["a", "b", "", "a", "a\0", ""], tf.string), ([[1, 2], [1, 3], [1, 2]], tf.int64), ([["a", "bc"], ["ab", "c"], ["a", "bc"]], tf.string)])
def test_unique_of_other_types(target, values, dtype):
    walk(target, lambda kw: unique(values, dtype), n=6, types=[dtype], shapes=[None])


def test_unique_of_different_shapes(target):
    walk(target, lambda kw: op("UniqueDataset", input_dataset=D.range(6).map(lambda x: tf.zeros([x % 3], tf.int64))._variant_tensor, output_types=[tf.int64], output_shapes=[None]), n=5, shapes=[None])


def test_list_of_pairs(target):
    kw = dict(output_types=[tf.int64, tf.string], output_shapes=[[], [None]])
    walk(target, lambda _: op("ListDataset", tensors=[i64(1), ["a"], i64(2), ["b", "c"]], **kw), n=4, types=[tf.int64, tf.string], shapes=[(), (None,)])


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    top = tmp_path_factory.mktemp("match")
    for name in ("b.txt", "a.txt", "a/x.txt", "a/y.py", "a.d/z.txt", "a/in/w.txt", ".hidden.txt", "empty/.keep"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(name)
    return top


@pytest.mark.asan
@pytest.mark.parametrize("name", ["MatchingFilesDataset", "ExperimentalMatchingFilesDataset"])
@pytest.mark.parametrize("patterns", [["*.txt"], ["*/*.txt"], ["a*"], ["*"], ["*/*"], ["*/*/*.txt", "b.txt"], ["b.txt"], ["none*"], ["none/*"], ["none*", "a.txt"], ["[ab].t?t"], ["empty/*.txt"], ["a.txt/*"], []])
def test_matching_files(target, tree, name, patterns):
    if not patterns:  # TensorFlow looks at the first one
        return
    walk(target, lambda kw: op(name, patterns=[str(tree / p) for p in patterns]), n=9, types=[tf.string])


@pytest.mark.parametrize("name", ["DatasetToTFRecord", "ExperimentalDatasetToTFRecord"])
@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_to_tf_record(target, tmp_path, name, compression):
    """What is written is what TensorFlow writes and reads; of an error or of other types nothing is left."""
    strings = lambda: D.range(300).map(lambda x: tf.strings.reduce_join(tf.fill([x * 7 % 50], tf.strings.as_string(x))))._variant_tensor
    out = {}
    for side, t in (("ours", target), ("tf", "")):
        path = str(tmp_path / side)
        assert steps(t, lambda: [op(name, input_dataset=strings(), filename=path, compression_type=compression)]) == [None]
        out[side] = [r.numpy() if hasattr(r, "numpy") else r for r in tf1.io.tf_record_iterator(path, tf1.io.TFRecordOptions({"": 0, "ZLIB": 1, "GZIP": 2}[compression]))]
    assert out["ours"] == out["tf"] and len(out["ours"]) == 300
    if not compression:
        assert (tmp_path / "ours").read_bytes() == (tmp_path / "tf").read_bytes()
    same(target, lambda: [op(name, input_dataset=rng(3), filename=str(tmp_path / "i"), compression_type="")])
    same(target, lambda: [op(name, input_dataset=D.from_tensors(("a", "b"))._variant_tensor, filename=str(tmp_path / "p"), compression_type="")])
    same(target, lambda: [op(name, input_dataset=D.from_tensors("a")._variant_tensor, filename=str(tmp_path / "no" / "p"), compression_type="")])
    same(target, lambda: [op(name, input_dataset=failing(5, 2).map(tf.strings.as_string)._variant_tensor, filename=str(tmp_path / "e"), compression_type="")])


TABLES = {
    "pairs": lambda: D.range(5).map(lambda x: (tf.strings.as_string(x), x * 10)),
    "none": lambda: D.range(0).map(lambda x: (tf.strings.as_string(x), x * 10)),
    "twice_same": lambda: D.range(6).map(lambda x: (tf.strings.as_string(x % 3), x % 3)),
    "twice": lambda: D.range(6).map(lambda x: (tf.strings.as_string(x % 3), x)),
    "one": lambda: D.range(5),
    "keys": lambda: D.range(5).map(lambda x: (x, x)),
    "values": lambda: D.range(5).map(lambda x: (tf.strings.as_string(x), tf.strings.as_string(x))),
    "vectors": lambda: D.range(5).map(lambda x: (tf.strings.as_string([x]), [x])),
    "error": lambda: failing(5, 3).map(lambda x: (tf.strings.as_string(x), x)),
}


BAD_TABLES = ("one", "keys", "values", "vectors")  # at which TensorFlow's kernel ends its process


@pytest.mark.asan
@pytest.mark.parametrize("name", TABLES)
def test_initialize_table(target, name):
    def build():
        t = op("HashTableV2", key_dtype=tf.string, value_dtype=tf.int64, shared_name="t_" + name)
        find = op("LookupTableFindV2", table_handle=t, keys=tf.constant(["3", "0", "x"]), default_value=i64(-1))
        fill = op("InitializeTableFromDataset", table_handle=t, dataset=TABLES[name]()._variant_tensor)
        return [find, fill, find, fill, op("LookupTableSizeV2", table_handle=t)]

    if name in BAD_TABLES:
        assert [e.code for e in steps(target, build)[1:4:2]] == [tf.errors.INVALID_ARGUMENT] * 2
    else:
        same(target, build)


SIZES = {
    "batch": lambda: D.range(9).batch(3),
    "padded": lambda: D.range(9).map(tf.range).padded_batch(4),
    "through": lambda: D.range(9).batch(3).cache().repeat(2).shuffle(4).prefetch(1).take(3).skip(1).shard(2, 0).filter(lambda x: True),
    "map": lambda: D.range(9).batch(3).map(lambda x: x),
    "none": lambda: D.range(9),
    "zip": lambda: D.zip((D.range(9).batch(2), D.range(8).batch(2))),
    "zip_other": lambda: D.zip((D.range(9).batch(2), D.range(8).batch(3))),
    "concatenate": lambda: D.range(9).batch(2).concatenate(D.range(3).batch(2)),
    "unbatch": lambda: D.range(9).batch(2).unbatch(),
    "twice": lambda: D.range(9).batch(2).batch(5),
}


@pytest.mark.parametrize("name", SIZES)
def test_compute_batch_size(target, name):
    same(target, lambda: [op("ComputeBatchSize", input_dataset=SIZES[name]()._variant_tensor)])


@pytest.mark.parametrize("name", ["batch3", "sliding", "sparse", "unique", "list"])
def test_cardinality(target, name):
    make = {
        "batch3": lambda: rebatch(batches(7, 3), 2),
        "sliding": lambda: slide(rng(9), 3, 2, 1),
        "sparse": lambda: op("DenseToSparseBatchDataset", input_dataset=ragged(1, 2, 3), batch_size=i64(2), row_shape=i64([-1]), output_types=[tf.variant], output_shapes=[None]),
        "unique": lambda: unique([1, 2], tf.int64),
        "list": lambda: op("ListDataset", tensors=[i64(5), i64(7)], **I64),
    }[name]
    same(target, lambda: [op("DatasetCardinality", input_dataset=make())])


@pytest.mark.asan
def test_map_defun(target):
    def mapped(f, args, types, shapes, specs, caps=()):
        return op("MapDefun", arguments=args, captured_inputs=list(caps), output_types=types, output_shapes=shapes, f=fn(f, *specs))

    one = [(tf.int64, [])]
    x = lambda: i64([[1, 2], [3, 4], [5, 6]])
    same(target, lambda: [mapped(lambda a: a * 2, [i64(list(range(200)))], [tf.int64], [[]], one),
                          mapped(lambda a: (tf.reduce_sum(a), tf.strings.as_string(a)), [x()], [tf.int64, tf.string], [[], [2]], [(tf.int64, [2])]),
                          mapped(lambda a, b, c: a + b + c, [x(), i64([10, 20, 30])], [tf.int64], [None], [(tf.int64, [2]), (tf.int64, []), (tf.int64, [])], [i64(100)]),
                          mapped(lambda a: a, [x()[:0]], [tf.int64], [[2]], [(tf.int64, [2])]),
                          mapped(lambda a: tf.range(a), [i64([3, 3])], [tf.int64], [[None]], one),
                          mapped(lambda a: tf.range(a), [i64([3, 2])], [tf.int64], [[None]], one),  # slices of different lengths
                          mapped(lambda a: a, [x()], [tf.int64], [[3]], [(tf.int64, [2])]),         # another shape
                          mapped(lambda a: a, [x()], [tf.int32], [[2]], [(tf.int64, [2])]),         # another type
                          mapped(lambda a: tf.math.floordiv(i64(6), a - 2), [i64([1, 2, 3])], [tf.int64], [[]], one)])
    same(target, lambda: [tf.raw_ops.MapDefun(arguments=[tf1.placeholder_with_default(i64(3), None)], captured_inputs=[], output_types=[tf.int64], output_shapes=[[]], f=fn(lambda a: a))])


TWICE = {
    "zip": lambda d: D.zip((d, d.map(lambda x: x))).map(lambda x, y: x * 100 + y),
    "zip_same": lambda d: D.zip((d, d)).map(lambda x, y: x * 100 + y),
    "concatenate": lambda d: d.concatenate(d),
    "repeat": lambda d: D.zip((d, d)).map(lambda x, y: x * 100 + y).repeat(2),
    "in_a_function": lambda d: D.range(3).flat_map(lambda x: D.range(5).shuffle(5, seed=3).map(lambda y: x * 10 + y)),
}


@pytest.mark.asan
@pytest.mark.parametrize("source", ["shuffle", "repeated", "random"])
@pytest.mark.parametrize("name", TWICE)
def test_a_shuffled_dataset_that_is_used_twice(target, name, source):
    """Both uses have the same order: they are datasets of their own to TensorFlow."""
    source = {"shuffle": lambda: D.range(9).shuffle(4, seed=5), "repeated": lambda: D.range(4).shuffle(4, seed=5).repeat(2),
              "random": lambda: tf.data.experimental.RandomDataset(seed=4).take(6)}[source]

    def build():
        it = tf1.data.make_initializable_iterator(TWICE[name](source()))
        return [it.initializer] + [it.get_next()] * 14 + [it.initializer] + [it.get_next()] * 3

    same(target, build)


def test_list_by_number(target):
    same(target, lambda: [op("GetElementAtIndex", dataset=op("ListDataset", tensors=[i64(5), i64(7)], **I64), index=i64(i), **I64) for i in (0, 1, 2, -1)])


CACHED = {
    "filter": lambda: D.range(9).filter(lambda x: tf.equal(x % 2, 0)).cache(),
    "scan": lambda: D.range(9).scan(i64(0), lambda s, x: (s + x, s + x)).cache(),
    "endless": lambda: D.range(3).filter(lambda x: x > 0).repeat().cache(),
    "not_cached": lambda: D.range(9).filter(lambda x: x > 0),
}


@pytest.mark.parametrize("name", CACHED)
def test_cached_by_number(target, name):
    for i in (0, 3, 4) if name == "endless" else (0, 3, 4, 9, -1):
        same(target, lambda: [op("GetElementAtIndex", dataset=CACHED[name]()._variant_tensor, index=i64(i), **I64)])


@pytest.mark.parametrize("n, said", [(1, "1 element but contained at least 2 elements"), (9, "9 elements but contained only 3 elements"), (-1, "an infinite number of elements but contained only 3 elements")])
def test_assert_cardinality_says_what_is_wrong(target, n, said):
    make = lambda: op("AssertCardinalityDataset", input_dataset=D.range(3).filter(lambda x: True)._variant_tensor, cardinality=i64(n), **I64)
    walk(target, lambda kw: make(), n=4, rounds=1)
    ours = steps(target, lambda: [op("ReduceDataset", input_dataset=make(), initial_state=[i64(0)], other_arguments=[], f=fn(lambda s, x: s + x, (tf.int64, []), (tf.int64, [])), **I64)])
    assert said in ours[0].message


def test_csv_without_a_header(target, tmp_path):
    for name, text in (("a", ""), ("b", "x,y\n1,2\n"), ("c", ""), ("d", "x,y\n")):
        (tmp_path / name).write_text(text)
    kw = dict(output_types=[tf.int64, tf.int64], output_shapes=[[], []])
    walk(target, lambda _: op("CSVDataset", filenames=[str(tmp_path / n) for n in "abcd"], compression_type="", buffer_size=i64(100), header=True, field_delim=",", use_quote_delim=True, na_value="",
                              select_cols=np.zeros(0, np.int64), record_defaults=[i64([0]), i64([0])], output_shapes=[[], []]), n=6, types=[tf.int64, tf.int64], shapes=[(), ()])


def test_experimental_parse_example_dataset(target):
    def example(i):
        f = {"x": tf.train.Feature(float_list=tf.train.FloatList(value=[i, i + 0.5]))}
        return tf.train.Example(features=tf.train.Features(feature=f)).SerializeToString()

    walk(target, lambda kw: op("ExperimentalParseExampleDataset", input_dataset=D.from_tensor_slices([example(i) for i in range(5)]).batch(2)._variant_tensor, num_parallel_calls=i64(2),
                               dense_defaults=[[0.0, 0.0]], sparse_keys=[], dense_keys=["x"], sparse_types=[], dense_shapes=[[2]], output_types=[tf.float32], output_shapes=[[None, 2]]),
         n=4, types=[tf.float32], shapes=[(None, 2)])
