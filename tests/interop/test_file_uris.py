"""file:// in front of paths, wherever files are named: the same file, and the name as it was given in keys, matches and errors."""
import numpy as np
import pytest
import tensorflow as tf

import both

tf1 = tf.compat.v1
raw = tf.raw_ops


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


@pytest.fixture
def uri(tmp_path):
    return f"file://{tmp_path}/"


def test_whole_files(target, uri, tmp_path):
    for name, host in (("a", ""), ("below/b", ""), ("c", "here")):
        f = uri.replace("file://", "file://" + host) + name
        for where in ("", target):
            assert both.run(where, raw.WriteFile(filename=f, contents="x" + name)) == [None]
            assert (tmp_path / name).read_text() == "x" + name
            (tmp_path / name).write_text("y")
            assert both.run(where, raw.ReadFile(filename=f)) == [b"y"]
    for pattern in ("*", "[ac]", "*/b", "a", "none"):
        both.same(target, raw.MatchingFiles(pattern=uri + pattern))
    both.same(target, raw.ReadFile(filename=uri + "none"))
    for f in ("nope://x/y", "no.pe1://x", "no-scheme://x"):
        both.same(target, raw.ReadFile(filename=f))
        both.same(target, raw.MatchingFiles(pattern=f))


def test_checkpoints(target, uri, tmp_path):
    v = np.arange(6, dtype=np.float32).reshape(2, 3)
    for i, (w, r) in enumerate([("", target), (target, ""), (target, target)]):
        p = f"{uri}v{i}"
        save = dict(tensor_names=["t"], shape_and_slices=[""])
        assert both.run(w, raw.SaveV2(prefix=p, tensors=[v], **save)) == [None]
        assert both.run(w, raw.SaveV2(prefix=p, tensors=[v], **save)) == [None]  # over the one that is there
        assert (tmp_path / f"v{i}.index").exists()
        np.testing.assert_array_equal(both.run(r, raw.RestoreV2(prefix=p, dtypes=[tf.float32], **save)[0])[0], v)
        part = f"{uri}v{i}_temp/part"
        assert both.run(w, raw.SaveV2(prefix=part, tensors=[v], **save)) == [None]
        assert both.run(w, raw.MergeV2Checkpoints(checkpoint_prefixes=[part], destination_prefix=f"{uri}m{i}")) == [None]
        assert (tmp_path / f"m{i}.index").exists() and not (tmp_path / f"v{i}_temp").exists()
        assert both.run(w, raw.Save(filename=f"{uri}old{i}", tensor_names=["t"], data=[v])) == [None]
        np.testing.assert_array_equal(both.run(r, raw.Restore(file_pattern=f"{uri}old{i}*", tensor_name="t", dt=tf.float32))[0], v)


def test_lines(target, uri, tmp_path):
    (tmp_path / "words").write_text("a\nb\nc\n")
    f = uri + "words"
    reader, queue = tf1.TextLineReader(), tf1.FIFOQueue(3, tf.string)
    both.same(target, reader.read(queue), before=[queue.enqueue(f)])
    both.same(target, tf1.data.make_one_shot_iterator(tf.data.TextLineDataset(f).batch(3)).get_next())
    both.same(target, tf1.data.make_one_shot_iterator(tf.data.Dataset.list_files(uri + "w*", shuffle=False)).get_next())
    table = tf.lookup.StaticVocabularyTable(tf.lookup.TextFileInitializer(f, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER), 1)
    both.same(target, table.lookup(tf.constant(["c", "a"])), before=[tf1.tables_initializer()])


def test_caches(target, uri, tmp_path):
    for w, r in (("", target), (target, "")):
        p = uri + ("cache" + w)[:6]
        for where in (w, r):
            it = tf1.data.make_initializable_iterator(tf.data.Dataset.range(3).cache(p).batch(5))
            assert both.run(where, it.get_next(), before=[it.initializer])[0].tolist() == [0, 1, 2]
        assert not list(tmp_path.glob("*.lockfile"))
    assert len(list(tmp_path.glob("cache*.index"))) == 2
