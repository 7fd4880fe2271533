"""Input pipelines: tf.data, readers with queue runners, example parsing. Every pipeline runs in TensorFlow's own session and on a cluster of ours; the elements
must be the same, in the same order, and end in the same way."""
import threading
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

D = tf.data.Dataset
W0 = "/job:worker/task:0"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Text, TFRecord and fixed-length files, plain and compressed."""
    tmp = tmp_path_factory.mktemp("files")
    for i in range(3):
        (tmp / f"lines{i}.txt").write_bytes(b"header\n" + b"".join(b"%d,%d.5,word%d\r\n" % (i, j, j) for j in range(7)) + b"last %d without newline" % i)
        for kind, suffix in (("", ""), ("GZIP", ".gz"), ("ZLIB", ".z")):
            with tf.io.TFRecordWriter(str(tmp / f"recs{i}{suffix}"), kind) as w:
                for j in range(9):
                    w.write(example(i, j).SerializeToString())
        (tmp / f"fixed{i}.bin").write_bytes(b"HEAD" + bytes(range(i, i + 30)) + b"FT")
    (tmp / "empty.txt").write_bytes(b"")
    (tmp / "long.txt").write_bytes(b"\n".join(b"x" * n for n in (0, 300000, 1, 0, 700000)) + b"\n\n")
    return tmp


def feature(v):
    if isinstance(v[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=v))
    if isinstance(v[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=v))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=v))


def example(i, j):
    f = {"x": feature([float(i), j + 0.5]), "y": feature([i * 100 + j]), "tags": feature([b"t%d" % k for k in range(j % 3)] or [b"none"])}
    if j % 2:
        f["sometimes"] = feature([j] * j)
    return tf.train.Example(features=tf.train.Features(feature=f))


def drain(sess, fetch, limit):
    out = []
    try:
        for _ in range(limit):
            out.append(sess.run(fetch))
    except tf.errors.OpError as e:
        out.append(type(e).__name__)
    return out


def same(a, b, where=""):
    assert type(a) is type(b) or (np.isscalar(a) and np.isscalar(b)), f"{where}: {a!r} {b!r}"
    if isinstance(a, (list, tuple)):
        assert len(a) == len(b), f"{where}: {len(a)} and {len(b)} elements: {a!r} {b!r}"
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{where}[{i}]")
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for k in a:
            same(a[k], b[k], f"{where}[{k}]")
    elif isinstance(a, str):
        assert a == b, f"{where}: {a} {b}"
    else:
        x, y = np.asarray(a), np.asarray(b)
        assert x.shape == y.shape and x.dtype == y.dtype and (x == y).all(), f"{where}: {a!r} {b!r}"


def both(cluster, build, limit=60, runs=1, kind="init"):
    """build() makes a dataset. The sequences of TensorFlow and of ours; `runs` times initialised."""
    results = []
    for target in ("", cluster.target("worker")):
        with tf.Graph().as_default():
            tf.set_random_seed(7)
            with tf.device(W0 if target else None):
                ds = build()
                it = tf.data.make_one_shot_iterator(ds) if kind == "one_shot" else tf.data.make_initializable_iterator(ds)
                nxt = it.get_next()
            with tf.Session(target, config=tf.ConfigProto(operation_timeout_in_ms=60000)) as s:
                got = []
                for _ in range(runs):
                    if kind != "one_shot":
                        s.run(it.initializer)
                    got.append(drain(s, nxt, limit))
                results.append(got)
    same(results[0], results[1])
    return results[1]


def sparse_map(x):
    return tf.SparseTensor(indices=[[x]], values=[x * 2], dense_shape=[100])


PIPELINES = {
    "range": lambda: D.range(5),
    "range_step": lambda: D.range(10, -5, -3),
    "tensors": lambda: D.from_tensors((np.arange(6).reshape(2, 3), b"text")),
    "slices": lambda: D.from_tensor_slices({"a": np.arange(12, dtype=np.float32).reshape(4, 3), "b": [b"w", b"xx", b"", b"a longer string here"]}),
    "map": lambda: D.range(10).map(lambda x: (x * x, tf.cast(x, tf.float32) / 2)),
    "map_captured": lambda: D.range(6).map(lambda x, c=tf.constant(100, tf.int64): x + c),
    "pmap": lambda: D.range(40).map(lambda x: x * 3, num_parallel_calls=4),
    "pmap_auto": lambda: D.range(40).map(lambda x: tf.strings.as_string(x), num_parallel_calls=tf.data.experimental.AUTOTUNE),
    "batch": lambda: D.range(10).batch(4),
    "batch_drop": lambda: D.range(10).batch(4, drop_remainder=True),
    "batch_strings": lambda: D.from_tensor_slices([b"a", b"bb", b"ccc"]).batch(2),
    "batch_bad": lambda: D.range(1, 5).map(lambda x: tf.range(x)).batch(2),
    "padded": lambda: D.range(1, 8).map(lambda x: (tf.range(x), tf.fill([x, 2], b"s"))).padded_batch(3, ([None], [None, 3])),
    "padded_values": lambda: D.range(1, 8).map(lambda x: tf.range(x)).padded_batch(3, [None], padding_values=np.int64(-1), drop_remainder=True),
    "padded_too_small": lambda: D.range(1, 8).map(lambda x: tf.range(x)).padded_batch(3, [4]),
    "repeat": lambda: D.range(3).repeat(3),
    "repeat_forever": lambda: D.range(3).repeat(),
    "repeat_nothing": lambda: D.range(0).repeat(),
    "repeat_zero": lambda: D.range(3).repeat(0),
    "take_skip": lambda: D.range(100).skip(7).take(5),
    "take_all": lambda: D.range(4).take(-1),
    "skip_all": lambda: D.range(4).skip(-1),
    "skip_beyond": lambda: D.range(4).skip(9),
    "shard": lambda: D.range(11).shard(3, 1),
    "filter": lambda: D.range(30).filter(lambda x: tf.equal(x % 7, 2)),
    "flat_map": lambda: D.range(5).flat_map(lambda x: D.range(x).map(lambda y: x * 10 + y)),
    "interleave": lambda: D.range(6).interleave(lambda x: D.from_tensors(x).repeat(tf.minimum(x, 4)), cycle_length=3, block_length=2),
    "pinterleave": lambda: D.range(8).interleave(lambda x: D.from_tensors(x).repeat(x), cycle_length=4, block_length=2, num_parallel_calls=2),
    "concat": lambda: D.range(3).concatenate(D.range(10, 12)),
    "zip": lambda: D.zip((D.range(4), D.range(10, 20).map(lambda x: tf.strings.as_string(x)))),
    "cache": lambda: D.range(4).map(lambda x: x + tf.random.uniform([], 0, 1000, tf.int64, seed=3)).cache().repeat(3),
    "prefetch": lambda: D.range(20).prefetch(3),
    "prefetch_zero": lambda: D.range(5).prefetch(0),
    "prefetch_auto": lambda: D.range(5).prefetch(tf.data.experimental.AUTOTUNE),
    "window": lambda: D.range(12).window(4, shift=2, stride=2).flat_map(lambda w: w.batch(4)),
    "window_drop": lambda: D.range(12).window(5, shift=6, drop_remainder=True).flat_map(lambda w: w.batch(5)),
    "unbatch": lambda: D.from_tensor_slices(np.arange(12).reshape(4, 3)).unbatch(),
    "scan": lambda: D.range(8).apply(tf.data.experimental.scan(np.int64(0), lambda s, x: (s + x, s * 100 + x))),
    "take_while": lambda: D.range(20).apply(tf.data.experimental.take_while(lambda x: x < 6)),
    "group": lambda: D.range(20).apply(tf.data.experimental.group_by_window(lambda x: x % 3, lambda k, w: w.batch(4), window_size=4)),
    "map_and_batch": lambda: D.range(10).apply(tf.data.experimental.map_and_batch(lambda x: x * x, 4)),
    "random": lambda: tf.data.experimental.RandomDataset(seed=5).take(6),
    "map_random": lambda: D.range(5).map(lambda x: tf.random.uniform([2], seed=4)),
    "map_stateless_cond": lambda: D.range(6).map(lambda x: tf.cond(x > 2, lambda: x * 2, lambda: -x)),
    "map_while": lambda: D.range(6).map(lambda x: tf.while_loop(lambda i, a: i < x, lambda i, a: (i + 1, a * 2), (tf.constant(0, tf.int64), tf.constant(1)))[1]),
    "map_error": lambda: D.from_tensor_slices([1.0, 0.0, 2.0, 0.0]).map(lambda x: tf.debugging.check_numerics(1 / x, "bad")),
    "ignore_errors": lambda: D.from_tensor_slices([1.0, 0.0, 2.0, 0.0, 4.0]).map(lambda x: tf.debugging.check_numerics(1 / x, "bad")).apply(tf.data.experimental.ignore_errors()),
    "sparse": lambda: D.range(5).map(sparse_map).batch(2),
    "sparse_slices": lambda: D.from_tensor_slices(tf.SparseTensor([[0, 1], [2, 0], [2, 3]], [5, 6, 7], [4, 4])),
    "shuffle": lambda: D.range(20).shuffle(7, seed=11),
    "shuffle_full": lambda: D.range(20).shuffle(100, seed=12),
    "shuffle_repeat": lambda: D.range(7).shuffle(4, seed=3).repeat(4),
    "shuffle_repeat_same": lambda: D.range(7).shuffle(4, seed=3, reshuffle_each_iteration=False).repeat(3),
    "shuffle_repeat_forever": lambda: D.range(5).shuffle(20, seed=3).repeat().batch(3),
    "shuffle_graph_seed": lambda: D.range(15).shuffle(6),
    "shuffle_and_repeat": lambda: D.range(9).apply(tf.data.experimental.shuffle_and_repeat(5, 3, seed=4)),
    "shuffle_and_repeat_small": lambda: D.range(2).apply(tf.data.experimental.shuffle_and_repeat(50, 20, seed=4)),
    "shuffle_shuffle": lambda: D.range(9).shuffle(5, seed=4).shuffle(3, seed=5),
    "nested": lambda: D.range(4).interleave(lambda x: D.range(x * 3).shuffle(4, seed=1).map(lambda y: y + 100 * x).batch(2), cycle_length=2),
    "whole": lambda: D.range(50).shuffle(10, seed=1).map(lambda x: (x, tf.one_hot(x % 4, 4)), num_parallel_calls=3).batch(8).prefetch(2).repeat(2),
}


@pytest.mark.asan
@pytest.mark.parametrize("name", PIPELINES)
def test_pipeline(fresh, name):
    both(fresh, PIPELINES[name], runs=2)


@pytest.mark.parametrize("name", ["map", "shuffle_repeat", "whole", "flat_map", "map_random"])
def test_one_shot(fresh, name):
    both(fresh, PIPELINES[name], kind="one_shot")


FILES = {
    "lines": lambda f: tf.data.TextLineDataset([str(f / f"lines{i}.txt") for i in range(3)]),
    "lines_skip": lambda f: D.list_files(str(f / "lines*.txt"), shuffle=False).flat_map(lambda n: tf.data.TextLineDataset(n).skip(1)),
    "lines_empty": lambda f: tf.data.TextLineDataset([str(f / "empty.txt"), str(f / "lines0.txt")]),
    "lines_long": lambda f: tf.data.TextLineDataset(str(f / "long.txt"), buffer_size=1000),
    "lines_missing": lambda f: tf.data.TextLineDataset(str(f / "nowhere.txt")),
    "csv": lambda f: tf.data.TextLineDataset(str(f / "lines1.txt")).skip(1).take(7).map(lambda s: tf.io.decode_csv(s, [[0], [0.0], [""]])).batch(3),
    "records": lambda f: tf.data.TFRecordDataset([str(f / f"recs{i}") for i in range(3)]),
    "records_gzip": lambda f: tf.data.TFRecordDataset([str(f / f"recs{i}.gz") for i in range(3)], "GZIP"),
    "records_zlib": lambda f: tf.data.TFRecordDataset(str(f / "recs1.z"), "ZLIB"),
    "records_not": lambda f: tf.data.TFRecordDataset(str(f / "lines1.txt")),
    "records_interleaved": lambda f: D.list_files(str(f / "recs?"), shuffle=True, seed=2).interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=2),
    "fixed": lambda f: tf.data.FixedLengthRecordDataset([str(f / f"fixed{i}.bin") for i in range(3)], 10, 4, 2),
    "fixed_bad": lambda f: tf.data.FixedLengthRecordDataset(str(f / "fixed0.bin"), 7, 4, 2),
}


@pytest.mark.asan
@pytest.mark.parametrize("name", FILES)
def test_files(fresh, files, name):
    both(fresh, lambda: FILES[name](files))
