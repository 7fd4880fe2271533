"""Input in C (tests/interop/c/inputs.c) against TensorFlow: record files and examples both ways, and datasets element by element."""
import json
import os
import pathlib
import subprocess

import numpy as np
import pytest
import tensorflow as tf2
from clusters import BIN
from conftest import SANITIZED

tf = tf2.compat.v1
TOOL = str(pathlib.Path(BIN).parent / "tests" / "interop" / "c" / "inputs")
ENV = {k: v for k, v in os.environ.items() if k != "TRAINERA_OPS_SEEN"}


def tool(*args):
    p = subprocess.run([TOOL, *map(str, args)], capture_output=True, env=ENV, timeout=60)
    assert p.returncode == 0, p.stderr.decode()
    return p.stdout


def examples():
    F = tf.train.Feature
    for i in range(4):
        yield tf.train.Example(features=tf.train.Features(feature={
            "x": F(float_list=tf.train.FloatList(value=[0.1 * i, -1e30, 3])), "id": F(int64_list=tf.train.Int64List(value=[-i, 2**62])),
            "name": F(bytes_list=tf.train.BytesList(value=[b"", b"abc" * i])), "none": F()})).SerializeToString()


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_records(tmp_path, compression):
    path = tmp_path / "c.tfrecord"
    tool("write", path, compression)
    got = list(tf.io.tf_record_iterator(str(path), tf.io.TFRecordOptions(compression)))
    for i, e in enumerate(tf.train.Example.FromString(r) for r in got):
        f = e.features.feature
        assert list(f["x"].float_list.value) == [i, i / 4] and list(f["id"].int64_list.value) == [i - 1] and list(f["name"].bytes_list.value) == [b"name\0x"]
        assert e.SerializeToString(deterministic=True) == got[i]
    assert len(got) == 3
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression)) as w:
        for e in examples():
            w.write(e)
    want = b""
    for i in range(4):
        want += b"".join(b"x %.9g\n" % np.float32(v) for v in (0.1 * i, -1e30, 3)) + b"id %d\nid %d\nname 0 \nname %d %s\nnone absent\n" % (-i, 2**62, 3 * i, b"abc" * i)
    assert tool("read", path, compression) == want


@pytest.mark.parametrize("kind", ["<f4", "<f8", "<f2", "|i1", "<i2", ">i4", "<i8", "|u1", ">u2", "<u4", "<u8", "|b1", "<c8", ">c16", ">f8"])
def test_array_files(tmp_path, kind):
    want = np.arange(30).reshape(5, 3, 2).astype(kind)
    for a in (want, want[:, 0, 0], want[:0], want[4, 1, 1]):
        np.save(tmp_path / "a.npy", np.asarray(a, order="C"))
        tool("npy", tmp_path / "a.npy", tmp_path / "b.npy")
        got = np.load(tmp_path / "b.npy")
        assert got.dtype == want.dtype.newbyteorder("<") and got.shape == a.shape
        np.testing.assert_array_equal(got, a)


@pytest.mark.skipif(SANITIZED, reason="sanitizers are not small")
def test_an_epoch_from_files_is_small(tmp_path):
    """All of MNIST's size in a fifteenth of the memory that TensorFlow's program needs for it (464 MB, bench/epoch.py): the data stays in its file."""
    y = np.arange(60000, dtype=np.int64) % 10
    np.save(tmp_path / "x.npy", np.resize(np.random.default_rng(1).integers(0, 255, (1000, 784), dtype=np.uint8), (60000, 784)))
    np.save(tmp_path / "y.npy", y)
    p = subprocess.run([str(pathlib.Path(BIN).parent / "bench" / "epoch"), "mlp", str(tmp_path / "x.npy"), str(tmp_path / "y.npy"), "1000"], capture_output=True, env=ENV, timeout=120)
    assert p.returncode == 0, p.stderr.decode()
    got = json.loads(p.stdout)
    assert got["steps"] == 60 and got["rss_mb"] < 31, got


def test_datasets(shared, tmp_path):
    csv, records = tmp_path / "a.csv", tmp_path / "r.tfrecord"
    csv.write_text('a,b,c\n1,2,"x, y"\n-3,4,z\n')
    with tf.io.TFRecordWriter(str(records)) as w:
        for e in examples():
            w.write(e)
    lines = tool("datasets", tmp_path / "g.pb", csv, records).decode().splitlines()
    D = tf2.data.Dataset
    with tf.Graph().as_default():
        tf.set_random_seed(9)
        r = D.range(0, 20, 2)
        halve = lambda v: (tf.cast(v, tf.float32) / 2, v)  # noqa: E731
        sets = {
            "range": r, "shuffle": r.shuffle(4, seed=3), "shuffle_graph_seed": r.shuffle(100).repeat(2), "batch": r.batch(4), "drop": r.shard(3, 1).batch(2, drop_remainder=True),
            "map": r.map(halve), "parallel": r.map(halve, 4).prefetch(2), "filter": r.skip(1).take(7).filter(lambda v: v > 6),
            "slices": D.zip((D.from_tensor_slices(np.arange(1, 7, dtype=np.float32).reshape(3, 2)), r)),
            "csv": tf2.data.experimental.CsvDataset(str(csv), [tf.int32, tf.string], header=True, select_cols=[0, 2]),
            "records": tf2.data.TFRecordDataset(str(records)),
            "lines": tf2.data.TextLineDataset(str(csv)).concatenate(tf2.data.TextLineDataset(str(csv))).cache(),
            "one_shot": D.range(0, 30, 3).map(halve).shuffle(10, seed=2).batch(3),
        }
        made = {k: tf.data.make_initializable_iterator(d) for k, d in sets.items() if k != "one_shot"}
        made["one_shot"] = tf.data.make_one_shot_iterator(sets["one_shot"])
        nexts = {k: it.get_next() for k, it in made.items()}
        with tf.Session() as s:
            want = {k: drain(s, it.initializer if k != "one_shot" else None, nexts[k]) for k, it in made.items()}
    assert [l.split()[1] for l in lines] == list(want)
    graph = tf.GraphDef.FromString((tmp_path / "g.pb").read_bytes())
    for target in (shared.target(), ""):
        with tf.Graph().as_default() as g:
            tf.import_graph_def(graph, name="")
            with tf.Session(target, graph=g) as s:
                for line in lines:
                    _, label, init, *names = line.split()
                    got = drain(s, None if init == "none" else init, tuple(names) if len(names) > 1 else names[0])
                    assert len(got) == len(want[label]), label
                    for a, b in zip(got, want[label]):
                        for x, y in zip(a, b) if isinstance(b, tuple) else [(a, b)]:
                            np.testing.assert_array_equal(x, y, err_msg=label)


def drain(s, init, fetch):
    if init is not None:
        s.run(init)
    out = []
    try:
        while True:
            out.append(s.run(fetch))
    except tf.errors.OutOfRangeError:
        return out
