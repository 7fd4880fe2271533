"""Datasets in files: what TensorFlow saved we load, and the reverse; snapshots; compressed elements; pauses. How datasets are compared is in test_raw_datasets.py."""
import pathlib
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import snapshot_pb2
from tensorflow.python.data.experimental.ops import compression_ops, snapshot, testing

import both
from test_raw_datasets import D, I64, W0, fn, i64, op, rng, same, steps, target, walk  # noqa: F401 (target is a fixture)

tf1 = tf.compat.v1
COMPRESSIONS = ["", "GZIP", "ZLIB", "SNAPPY"]


def typed(x):
    return {t.name: tf.cast([x, 7], t) for t in (tf.float16, tf.bfloat16, tf.float64, tf.int8, tf.uint8, tf.int32, tf.uint64, tf.bool, tf.complex64)}


ELEMENTS = {
    "numbers": lambda: D.range(42),
    "none": lambda: D.range(0),
    "several": lambda: D.range(20).map(lambda x: (x, tf.strings.as_string(x), tf.fill([x, 2], 1.5), tf.fill([x % 3], "ab"))),
    "types": lambda: D.range(5).map(typed),
    "strings": lambda: D.range(9).map(lambda x: tf.strings.reduce_join(tf.fill([x * x * 1000], tf.strings.as_string(x)))),
    "large": lambda: D.range(3).map(lambda x: tf.random.stateless_uniform([150000], [1, x])),
    "sparse": lambda: D.range(5).map(lambda x: tf.sparse.from_dense([[x, 0], [0, x - 3]])),
}


def through(make, n=None):
    """Fetches that walk over a dataset to its end and one beyond."""
    def build():
        it = tf1.data.make_initializable_iterator(make())
        return [it.initializer] + [it.get_next()] * (n or 50)
    return build


def flat(results):
    return [r if isinstance(r, both.Failed) else tf.nest.flatten(r, expand_composites=True) for r in results]


def agree(got, want):
    both.agree(flat(got), flat(want))
    return want


def meta(path):
    m = snapshot_pb2.SnapshotMetadataRecord.FromString((pathlib.Path(path) / "snapshot.metadata").read_bytes())
    files = sorted((pathlib.Path(path) / m.run_id).rglob("*.snapshot"))
    assert abs(m.creation_timestamp / 1e6 - time.time()) < 600
    m.creation_timestamp = 0
    run = m.run_id
    m.run_id = ""
    return m, [(str(f.relative_to(pathlib.Path(path) / run)), f.read_bytes()) for f in files]


@pytest.mark.asan
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("name", ELEMENTS)
def test_saved_here_loaded_there(target, tmp_path, name, compression):
    want = steps("", through(ELEMENTS[name]))
    for side, t in (("ours", target), ("tf", "")):
        path = str(tmp_path / side)
        steps_ = steps(t, lambda: [ELEMENTS[name]().save(path, compression=compression)])
        assert steps_ == [None], steps_
        for reader in (target, ""):
            if (name, compression, side, reader) == ("large", "SNAPPY", "tf", ""):
                continue  # it writes larger blocks than it reads
            agree(steps(reader, through(lambda: D.load(path, compression=compression))), want)
    ours, theirs = meta(tmp_path / "ours"), meta(tmp_path / "tf")
    assert ours[0] == theirs[0] and ours[0].finalized
    assert [f for f, _ in ours[1]] == [f for f, _ in theirs[1]]
    if not compression and name != "sparse":  # there, an empty field may be left out or not
        assert ours == theirs


@pytest.mark.asan
@pytest.mark.parametrize("shard", [lambda x: x % 3, lambda x: x // 30, lambda x: x - x, lambda x: -x % 2 - 1])
def test_shards(target, tmp_path, shard):
    for side, t in (("ours", target), ("tf", "")):
        assert steps(t, lambda: [D.range(42).save(str(tmp_path / side), shard_func=shard)]) == [None]
    assert meta(tmp_path / "ours") == meta(tmp_path / "tf")
    for reader in (None, lambda ds: ds.flat_map(lambda x: x), lambda ds: ds.interleave(lambda x: x, cycle_length=2, block_length=3), lambda ds: ds.flat_map(lambda x: x.map(lambda y: y * y)).skip(3)):
        want = steps("", through(lambda: D.load(str(tmp_path / "tf"), reader_func=reader)))
        agree(steps(target, through(lambda: D.load(str(tmp_path / "ours"), reader_func=reader))), want)


def test_captured(target, tmp_path):
    """Functions use tensors of the graph."""
    three = lambda: tf.constant(3, tf.int64) + 0
    for side, t in (("ours", target), ("tf", "")):
        def build():
            c = three()
            return [D.range(20).save(str(tmp_path / side), shard_func=lambda x: x % c)]
        assert steps(t, build) == [None]
    assert meta(tmp_path / "ours") == meta(tmp_path / "tf")

    def reading():
        c = three()
        return D.load(str(tmp_path / "ours"), reader_func=lambda ds: ds.flat_map(lambda x: x.map(lambda y: y * c)))
    agree(steps(target, through(reading)), steps("", through(reading)))


@pytest.mark.asan
def test_in_functions(target, tmp_path):
    """Saved within one function, loaded and summed up within another."""
    path = str(tmp_path / "f")

    @tf.function
    def save():
        D.range(10).map(lambda x: x * x).save(path, compression="SNAPPY")
        return tf.constant(1)

    @tf.function
    def total():
        return D.load(path, element_spec=tf.TensorSpec([], tf.int64), compression="SNAPPY").reduce(i64(0), lambda a, b: a + b)

    for t in (target, ""):
        assert steps(t, lambda: [save()]) == [1]
        assert steps(target, lambda: [total()]) == steps("", lambda: [total()]) == [285]


@pytest.mark.asan
def test_what_goes_wrong(target, tmp_path):
    """The same errors; nothing that is half there can be loaded."""
    spec = tf.data.DatasetSpec(tf.data.DatasetSpec(tf.TensorSpec([], tf.int64)))

    def from_nowhere(kw):
        f = tf.function(lambda ds: ds.flat_map(lambda x: x), input_signature=[spec]).get_concrete_function()
        f.add_to_graph()
        return op("LoadDataset", path=given(tmp_path / "nothing"), reader_func_other_args=[], reader_func=f, **kw)
    walk(target, from_nowhere)
    for bad in (lambda x: tf.stack([x, x]), lambda x: tf.cast(x, tf.int32), lambda x: tf.strings.to_number(tf.strings.as_string(x) + "x", tf.int64)):
        same(target, lambda: [D.range(3).save(str(tmp_path / "bad"), shard_func=bad)])
    broken = lambda: D.range(9).map(lambda x: tf.math.floordiv(i64(12), x - 5))
    out = steps(target, lambda: [broken().save(str(tmp_path / "error"))])
    assert out[0].code == tf.errors.INVALID_ARGUMENT, out
    assert not meta(tmp_path / "error")[0].finalized and not meta(tmp_path / "error")[1]
    assert steps(target, lambda: [D.range(9).save(str(tmp_path / "good"))]) == [None]
    file = next((tmp_path / "good").rglob("*.snapshot"))
    whole = file.read_bytes()
    for cut in (whole[:-3], whole[:40] + b"\0" * 8 + whole[48:], b"nonsense" * 9):
        file.write_bytes(cut)
        got, want = (steps(t, through(lambda: D.load(str(tmp_path / "good")), 12)) for t in (target, ""))
        assert [r.code if isinstance(r, both.Failed) else None for r in got[:2]] == [r.code if isinstance(r, both.Failed) else None for r in want[:2]]
        assert any(isinstance(r, both.Failed) and r.code == tf.errors.DATA_LOSS for r in got), got
    same(target, through(lambda: D.load(str(tmp_path / "good"), element_spec=(tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int64))), 1))
    (tmp_path / "good" / "snapshot.metadata").write_bytes(b"\x12\x05../..")
    assert steps(target, through(lambda: D.load(str(tmp_path / "good")), 1))[0].code == tf.errors.DATA_LOSS
    out = steps(target, lambda: [D.range(2000).save(str(tmp_path / "many"), shard_func=lambda x: x)])
    assert out[0].code == tf.errors.RESOURCE_EXHAUSTED and "1000 shards" in out[0].message


@pytest.mark.asan
def test_missing_shard(target, tmp_path):
    """It is an error once; who ignores errors gets what the others hold."""
    assert steps(target, lambda: [D.range(12).save(str(tmp_path / "d"), shard_func=lambda x: x % 3)]) == [None]
    (gone,) = (tmp_path / "d").rglob("00000001.shard/*.snapshot")
    gone.unlink()
    for ignores in (lambda d: d, lambda d: d.ignore_errors()):
        make = lambda: ignores(D.load(str(tmp_path / "d"), reader_func=lambda ds: ds.flat_map(lambda x: x)))
        want = agree(steps(target, through(make, 12)), steps("", through(make, 12)))
        assert [int(x[0]) for x in flat(want)[1:] if not isinstance(x, both.Failed)] == [0, 3, 6, 9, 2, 5, 8, 11]


@pytest.mark.asan
@pytest.mark.parametrize("use", [True, False])
def test_save_v2(target, tmp_path, use):
    """Elements pass through while they are written."""
    out = {}
    for side, t in (("ours", target), ("tf", "")):
        def make(kw):
            f = fn(lambda x: x % 2)
            return op("SaveDatasetV2", input_dataset=rng(7), path=str(tmp_path / side), shard_func_other_args=[], shard_func=f, use_shard_func=use, **kw)

        def build():
            h = op("IteratorV2", shared_name="", container="", **I64)
            o = tf.data.Options()
            o.experimental_optimization.apply_default_optimizations = False
            d = op("OptionsDataset", input_dataset=make(I64), serialized_options=o._to_proto().SerializeToString(), **I64)
            return [op("MakeIterator", dataset=d, iterator=h)] + [op("IteratorGetNext", iterator=h, **I64)] * 9
        out[side] = steps(t, build)
    both.agree(out["ours"], out["tf"])
    assert meta(tmp_path / "ours") == meta(tmp_path / "tf")


# ---- snapshots ------------------------------------------------------------------------------------------------------------------


def the_snapshot(path):
    return [p for p in pathlib.Path(path).iterdir() if p.is_dir()]


@pytest.mark.asan
@pytest.mark.parametrize("compression", ["AUTO", "", "GZIP", "SNAPPY"])
@pytest.mark.parametrize("name", ["numbers", "none", "several", "strings", "large", "sparse"])
def test_snapshot(target, tmp_path, name, compression):
    """The first walk writes, the second one reads: the elements of the first."""
    make = lambda: ELEMENTS[name]().snapshot(str(tmp_path / "s"), compression=compression)
    want = steps("", through(ELEMENTS[name]))
    for _ in range(2):
        agree(steps(target, through(make)), want)
    (folder,) = the_snapshot(tmp_path / "s")
    (run,) = the_snapshot(folder)
    for f in run.rglob("*.snapshot"):
        f.unlink()
    out = steps(target, through(make, 2))
    assert name == "none" or out[1].code == tf.errors.NOT_FOUND, "it was not read from the files"


def test_snapshot_of_random_numbers(target, tmp_path):
    """What the walk that was first to its end saw stays; names and seeds do not matter, everything else does."""
    make = lambda k=1: D.range(30).shuffle(30).map(lambda x: x * k).snapshot(str(tmp_path / "s"))
    first = steps(target, through(make))
    tf1.reset_default_graph()

    def again():
        tf.constant(1)
        return D.range(30, name="another").shuffle(30).map(lambda value: value * 1).snapshot(str(tmp_path / "s"))
    agree(steps(target, through(again)), first)
    assert len(the_snapshot(tmp_path / "s")) == 1
    assert flat(steps(target, through(lambda: make(2)))) != flat(first)
    assert len(the_snapshot(tmp_path / "s")) == 2
    steps(target, through(lambda: D.range(31).shuffle(30).map(lambda x: x * 1).snapshot(str(tmp_path / "s"))))
    assert len(the_snapshot(tmp_path / "s")) == 3
    steps(target, through(lambda: make(1).take(3), 3))
    assert len(the_snapshot(tmp_path / "s")) == 3


def given(name):
    """Not a constant: of datasets that are made of constants alone TensorFlow tries to make constants."""
    return tf.strings.substr(str(name), 0, tf.random.uniform([], 10000, 10001, tf.int32))


def numbered(path, number, dataset, **attrs):
    spec = tf.data.DatasetSpec(tf.data.DatasetSpec(tf.TensorSpec([], tf.int64)))
    reader = tf.function(lambda ds: ds.flat_map(lambda x: x), input_signature=[spec]).get_concrete_function()
    reader.add_to_graph()
    return op("SnapshotDatasetV2", input_dataset=dataset, path=path, reader_func_other_args=[], shard_func_other_args=[], hash_valid=True, hash=number, reader_func=reader,
              shard_func=fn(lambda x: x % 3), **attrs, **I64)


@pytest.mark.asan
@pytest.mark.parametrize("compression", ["", "GZIP", "SNAPPY"])
@pytest.mark.parametrize("prefix", [False, True])
def test_numbered_snapshots(target, tmp_path, compression, prefix):
    """Who says which number the snapshot has finds TensorFlow's, and TensorFlow ours."""
    for writer, t, number in (("ours", target, 7), ("tf", "", -9)):
        top = str(tmp_path / writer)
        kw = dict(writer_prefix=top, reader_prefix=top, compression=compression) if prefix else dict(compression=compression)
        path = "/in/here" if prefix else top
        walked = {}
        for reader, r in (("first", t), ("ours", target), ("tf", "")):
            def build(n=20 if reader == "first" else 5):  # the others would see less
                h = op("IteratorV2", shared_name="", container="", **I64)
                o = tf.data.Options()
                o.experimental_optimization.apply_default_optimizations = False
                d = op("OptionsDataset", input_dataset=numbered(path, number, rng(n), **kw), serialized_options=o._to_proto().SerializeToString(), **I64)
                return [op("MakeIterator", dataset=d, iterator=h)] + [op("IteratorGetNext", iterator=h, **I64)] * 22
            walked[reader] = steps(r, build)
        assert [x[0].tolist() for x in walked["first"][1:21]] == list(range(20))
        both.agree(walked["ours"], walked["tf"])
        assert [x[0].tolist() for x in walked["ours"][1:21]] == [x for s in range(3) for x in range(s, 20, 3)]
        m, files = meta(tmp_path / writer / ("in/here" if prefix else "") / str(number % 2**64))
        assert m.finalized and m.graph_hash == str(number % 2**64) and len(files) == 3


def test_unfinished_snapshot(target, tmp_path):
    """A walk that ends early leaves nothing that is read; the next one writes again."""
    make = lambda: D.range(30).snapshot(str(tmp_path / "s"))
    steps(target, through(make, 4))
    (folder,) = the_snapshot(tmp_path / "s")
    assert not meta(folder)[0].finalized
    for _ in range(2):
        out = flat(steps(target, through(make)))
        assert [int(r[0]) for r in out[1:31]] == list(range(30))
    assert meta(folder)[0].finalized


# ---- readers ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["", "GZIP", "SNAPPY"])
def test_old_versions(target, tmp_path, compression):
    """Files of version 1, which TensorFlow's first snapshots wrote, and of version 0."""
    # no empty tensors: TensorFlow cannot compress them in this version
    make = lambda: D.range(20).map(lambda x: (x, tf.strings.as_string(x), tf.fill([x % 4 + 1, 2], 1.5))).apply(snapshot.legacy_snapshot(str(tmp_path / "old"), compression=compression))
    steps("", through(make, 22))
    kw = dict(output_types=[tf.int64, tf.string, tf.float32], output_shapes=[[], [], [None, 2]])
    (file,) = (tmp_path / "old").rglob("00000000.snapshot")
    read = lambda version, dir, start=0, **more: walk(target, lambda _: op("SnapshotDatasetReader", shard_dir=given(dir), start_index=i64(start), compression=compression, version=version, **kw),
                                                      n=22, types=kw["output_types"], shapes=kw["output_shapes"])
    got = read(1, file.parent)
    assert got[20][1] == b"19"
    read(1, file.parent, 7)
    if compression != "SNAPPY":
        read(0, file.parent)
    read(3, file.parent)


def test_chunk(target, tmp_path):
    assert steps("", lambda: [D.range(9).save(str(tmp_path / "d"), compression="SNAPPY")]) == [None]
    (file,) = (tmp_path / "d").rglob("*.snapshot")
    chunk = lambda name: lambda kw: op("SnapshotChunkDataset", chunk_file=given(name), compression="SNAPPY", **kw)
    walk(target, chunk(file))
    with pytest.raises(AssertionError, match="MakeIterator"):  # TensorFlow says it when the walk begins, we when the first element is asked for
        walk(target, chunk(tmp_path / "none"))
    both_files = tmp_path / "shard"
    both_files.mkdir()
    for i in range(2):
        (both_files / ("%08d.snapshot" % i)).write_bytes(file.read_bytes())

    def shard(start):
        h = op("IteratorV2", shared_name="", container="", **I64)
        d = op("SnapshotDatasetReader", shard_dir=str(both_files), start_index=i64(start), compression="SNAPPY", version=2, **I64)
        return [op("MakeIterator", dataset=d, iterator=h)] + [op("IteratorGetNext", iterator=h, **I64)] * 19
    for start in (0, 4):  # TensorFlow gives an element without components where a file ends
        out = steps(target, lambda: shard(start))
        assert [int(x[0]) for x in out[1:19 - start]] == (list(range(9)) * 2)[start:] and out[19 - start].code == tf.errors.OUT_OF_RANGE


def test_nested(target):
    """TensorFlow's own forgets that it holds the datasets, and crashes."""
    kw = dict(output_types=[tf.variant], output_shapes=[[]])

    def build():
        h = op("IteratorV2", shared_name="", container="", **I64)
        n = op("SnapshotNestedDatasetReader", inputs=[rng(3), rng(5, 8)], **kw)
        d = op("FlatMapDataset", input_dataset=n, other_arguments=[], f=fn(lambda v: v, (tf.variant, [])), **I64)
        return [op("MakeIterator", dataset=d, iterator=h)] + [op("IteratorGetNext", iterator=h, **I64)] * 7
    out = steps(target, build)
    assert [int(x[0]) for x in out[1:7]] == [0, 1, 2, 5, 6, 7] and out[7].code == tf.errors.OUT_OF_RANGE


# ---- compressed elements ------------------------------------------------------------------------------------------------------------


def components():
    r = np.random.RandomState(5)
    return {
        "mixed": [tf.constant(3), tf.constant(["a", "", "bc" * 500]), tf.constant([True, False]), tf.constant(r.standard_normal([30, 40]).astype("f")), tf.constant(2 + 1j, tf.complex128)],
        "empty": [tf.zeros([0, 3]), tf.constant([], tf.string), tf.constant("")],
        "same": [tf.fill([100000], tf.constant(7, tf.int64))],
        "bytes": [tf.constant(r.randint(0, 5, 300000).astype("u1")), tf.constant(r.bytes(70000))],
        "variant": [op("SerializeSparse", sparse_indices=i64([0, 1], [2, 3]), sparse_values=tf.constant([1.5, 2.5]), sparse_shape=i64(4, 5), out_type=tf.variant), tf.constant(1)],
    }


def restored(name, parts):
    if name == "variant":
        return list(op("DeserializeSparse", serialized_sparse=parts[0], dtype=tf.float32)) + [parts[1]]
    return list(parts)


@pytest.mark.asan
@pytest.mark.parametrize("name", ["mixed", "empty", "same", "bytes", "variant"])
def test_compress(cluster, name):
    """On one task TensorFlow, on the other one ours: each takes what either has compressed."""
    c = cluster(ps=1, workers=1, ps_kind="tf")
    with tf1.Session(c.target("worker"), config=tf1.ConfigProto(operation_timeout_in_ms=60000)) as s:
        for packer in ("/job:ps", "/job:worker"):
            for taker in ("/job:ps", "/job:worker"):
                with tf1.device("/job:ps"):
                    parts = components()[name]
                with tf1.device(packer):
                    packed = op("CompressElement", components=parts)
                with tf1.device(taker):
                    out = op("UncompressElement", compressed=packed, output_types=[p.dtype for p in parts], output_shapes=[p.shape for p in parts])
                with tf1.device("/job:worker"):
                    got, want = s.run([restored(name, out), restored(name, parts)])
                both.agree([got], [want])


@pytest.mark.asan
def test_compressed_dataset(target):
    spec = D.range(3).map(lambda x: (x, tf.strings.as_string(x))).element_spec

    def make():
        d = D.range(30).map(lambda x: (x, tf.strings.as_string(x)))
        return d.map(lambda *x: compression_ops.compress(x)).map(lambda x: compression_ops.uncompress(x, spec))
    agree(steps(target, through(make)), steps("", through(make)))


def test_uncompress_what_is_not_compressed(target):
    take = lambda v, n=1: op("UncompressElement", compressed=v, output_types=[tf.int32] * n, output_shapes=[[]] * n)
    packed = lambda: op("CompressElement", components=[tf.constant("a"), tf.constant(1)])
    same(target, lambda: [take(rng(3))])
    same(target, lambda: [take(packed())])
    same(target, lambda: [take(packed(), 2)])
    same(target, lambda: [take(packed(), 3)])


# ---- pauses ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.asan
@pytest.mark.parametrize("name", ["SleepDataset", "ExperimentalSleepDataset"])
def test_sleep(target, name):
    start = time.time()
    walk(target, lambda kw: op(name, input_dataset=rng(3), sleep_microseconds=i64(100000), **kw), n=4)
    assert time.time() - start > 1.6, "two walks of four pauses each, here and in TensorFlow"
    for us in (0, -1):
        walk(target, lambda kw: op(name, input_dataset=rng(3), sleep_microseconds=i64(us), **kw), n=4)


@pytest.mark.asan
def test_many_sleep_at_once(target):
    """More than there are threads."""
    with tf1.device(W0):
        its = [tf1.data.make_initializable_iterator(D.range(1).apply(testing.sleep(1000000))) for _ in range(60)]
        nexts = [i.get_next() for i in its]
    with tf1.Session(target, config=tf1.ConfigProto(operation_timeout_in_ms=60000)) as s:
        s.run([i.initializer for i in its])
        start = time.time()
        assert s.run(nexts) == [0] * 60
        assert 1 <= time.time() - start < 15


@pytest.mark.asan
def test_sleep_is_cancelled(target):
    with tf1.device(W0):
        it = tf1.data.make_initializable_iterator(D.range(3).apply(testing.sleep(10**12)))
        ahead = tf1.data.make_initializable_iterator(D.range(3).apply(testing.sleep(10**12)).prefetch(1))
        nxt, quick = [it.get_next(), ahead.get_next()], tf.constant(3) + 4
    with tf1.Session(target) as s:
        s.run([it.initializer, ahead.initializer])
        for n in nxt + nxt:
            start = time.time()
            with pytest.raises(tf.errors.DeadlineExceededError):
                s.run(n, options=tf1.RunOptions(timeout_in_ms=300))
            assert time.time() - start < 10
        assert s.run(quick) == 7
