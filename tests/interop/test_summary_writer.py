"""Summary writers in graphs: the events that TensorFlow's own session writes, except for their times."""
import glob

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import gen_summary_ops as gen

import both

tf1 = tf.compat.v1


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


def events(folder):
    """Events of the files, in the order of their names; PNGs decoded, since zlib is not the same everywhere."""
    out = []
    for path in sorted(glob.glob(f"{folder}/events.out.tfevents.*")):
        for e in tf1.train.summary_iterator(path):
            if e.file_version == "brain.Event:2":
                e.ClearField("source_metadata")
            assert 1.6e9 < e.wall_time < 1e10 or e.wall_time in (0, 17)
            e.wall_time = 0
            for v in e.summary.value:
                if v.image.encoded_image_string:
                    v.image.encoded_image_string = pixels(v.image.encoded_image_string)
                if v.HasField("tensor"):
                    a = tf.make_ndarray(v.tensor)
                    v.tensor.CopyFrom(tf.make_tensor_proto(a, v.tensor.dtype, a.shape))
            out.append(e)
    return out


def pixels(png):
    with tf.Graph().as_default(), tf1.Session() as s:
        return s.run(tf.io.decode_png(png)).tobytes()


def compare(target, tmp_path, build, runs=1):
    """build(logdir) gives the ops: first to create, then in turn."""
    folders = []
    for i, where in enumerate(("", target)):
        folder = str(tmp_path / f"d{i}" / "deep" / "er")
        folders.append(folder)
        with tf.Graph().as_default():
            ops = build(folder)
            with tf1.Session(where) as s:
                for _ in range(runs):
                    for op in ops:
                        s.run(op)
    want, got = map(events, folders)
    assert len(want) == len(got)
    for w, g in zip(want, got):
        assert w == g
    return got


@pytest.mark.asan
def test_api(target, tmp_path):
    """tf.summary in a graph."""
    def build(folder):
        rng = np.random.RandomState(3)
        w = tf.summary.create_file_writer(folder, filename_suffix=".here")
        step = tf1.get_variable("step", initializer=tf.constant(5, tf.int64), use_resource=True)
        with w.as_default(step=step):
            ops = [
                tf.summary.write("t", tf.constant(rng.rand(3, 4).astype(np.float32)), metadata=tf1.SummaryMetadata(display_name="d", summary_description="e")),
                tf.summary.write("s", tf.constant(["a", "bc"])),
                tf.summary.write("i", tf.range(4)),
                tf.summary.write("e", tf.zeros([0, 3], tf.float64)),
                tf.summary.experimental.write_raw_pb(tf1.Summary(value=[tf1.Summary.Value(tag="a", simple_value=2)]).SerializeToString(), step=9),
            ]
            with tf.summary.record_if(False):
                ops.append(tf.summary.write("not", 1.0))
        bump = step.assign_add(1)
        return [[step.initializer, w.init()], *ops, bump, *ops, w.flush(), w.close()]
    got = compare(target, tmp_path, build)
    assert [e.step for e in got] == [0, 5, 5, 5, 5, 9, 6, 6, 6, 6, 9]
    assert glob.glob(f"{tmp_path}/d1/deep/er/*.here")


@pytest.mark.asan
def test_raw_ops(target, tmp_path):
    def build(folder):
        rng = np.random.RandomState(1)
        w = gen.summary_writer(shared_name="raw")
        bad = rng.rand(2, 4, 5, 3).astype(np.float32)
        bad[0, 1, 2, 0] = np.nan
        color, pb = tf.constant([255, 0, 0, 255], tf.uint8), tf1.Summary(value=[tf1.Summary.Value(tag="r", simple_value=1)])
        ops = [gen.create_summary_file_writer(w, folder, 10, 120000, "x"), gen.create_summary_file_writer(w, folder, 10, 120000, "x")]
        for t in (tf.float32, tf.float64, tf.float16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.int8, tf.int16):
            ops.append(gen.write_scalar_summary(w, 3, t.name, tf.cast(tf.constant([7, 8]), t)))
            ops.append(gen.write_histogram_summary(w, 4, t.name, tf.cast(tf.constant(rng.rand(20) * 100), t)))
        ops.append(gen.write_histogram_summary(w, 4, "bool", tf.constant([True, False, True])))
        ops.append(gen.write_histogram_summary(w, 4, "none", tf.zeros([0])))
        for image in (rng.randint(0, 256, (2, 3, 4, 3)).astype(np.uint8), rng.rand(1, 3, 4, 1).astype(np.float32), bad, rng.rand(4, 2, 2, 4) - 0.5):
            ops.append(gen.write_image_summary(w, 5, "im", tf.constant(image), color))
            ops.append(gen.write_image_summary(w, 5, "one", tf.constant(image), color, max_images=1))
        ops.append(gen.write_audio_summary(w, 6, "au", tf.constant(rng.rand(2, 30).astype(np.float32) * 2 - 1), 44100.0))
        ops.append(gen.write_audio_summary(w, 6, "au", tf.constant(rng.rand(2, 30, 2).astype(np.float32) * 2 - 1), 8000.0, max_outputs=1))
        ops.append(gen.write_raw_proto_summary(w, 7, tf.constant([pb.SerializeToString(), b"", pb.SerializeToString()])))
        ops.append(gen.write_raw_proto_summary(w, 7, tf.constant([], tf.string)))
        ops.append(gen.import_event(w, tf1.Event(wall_time=17, step=8, summary=pb).SerializeToString()))
        ops.append(gen.import_event(w, b""))
        ops.append(gen.write_graph_summary(w, 9, tf1.GraphDef(versions=tf1.GraphDef().versions.__class__(producer=3)).SerializeToString()))
        ops.append(gen.write_summary(w, -1, tf.constant(1.5), "", b""))
        return [*ops, gen.flush_summary_writer(w), gen.close_summary_writer(w)]
    compare(target, tmp_path, build)


@pytest.mark.asan
def test_when_it_is_written(target, tmp_path):
    """After max_queue events, after flush_millis, at the end of the session's task at the latest; a closed writer begins a new file."""
    def lines(d):
        return len(events(str(tmp_path / d)))
    w, x = gen.summary_writer(shared_name="queue"), gen.summary_writer(shared_name="time")
    put, put_x = gen.write_scalar_summary(w, 1, "a", 1.0), gen.write_scalar_summary(x, 1, "a", 1.0)
    make = gen.create_summary_file_writer(w, str(tmp_path / "q"), 3, 10**6, "")
    with tf1.Session(target) as s:
        s.run([make, gen.create_summary_file_writer(x, str(tmp_path / "t"), 1000, 0, "")])
        assert lines("q") == lines("t") == 1
        for _ in range(3):
            s.run([put, put_x])
        assert lines("q") == 1 and lines("t") == 4
        s.run(put)
        assert lines("q") == 5
        s.run(put)
        s.run(gen.close_summary_writer(w))
        assert lines("q") == 6
        with pytest.raises(tf.errors.NotFoundError):
            s.run(put)
        s.run(make)
        s.run(put)
    tf1.Session.reset(target)
    assert lines("q") == 8 and len(glob.glob(f"{tmp_path}/q/*")) == 2


@pytest.mark.asan
def test_errors(target, tmp_path):
    (tmp_path / "file").write_text("")
    w, none = gen.summary_writer(shared_name="errors"), gen.summary_writer(shared_name="none")
    color, one = tf.constant([255, 0, 0, 255], tf.uint8), tf1.placeholder_with_default(tf.constant([1, 2]), None)
    runs = [
        gen.create_summary_file_writer(none, str(tmp_path / "file"), 1, 1, ""),
        gen.create_summary_file_writer(none, str(tmp_path / "file" / "under"), 1, 1, ""),
        gen.create_summary_file_writer(none, str(tmp_path), one, 1, ""),
        gen.write_scalar_summary(none, 1, "a", 1.0),
        gen.flush_summary_writer(none),
        gen.close_summary_writer(none),
        gen.write_raw_proto_summary(w, 1, tf.constant([b"\x0a\x05ab"])),
        gen.import_event(w, b"\x0a\x05ab"),
        gen.write_graph_summary(w, 1, b"\x0a\x05ab"),
        gen.write_histogram_summary(w, 1, "a", tf.constant([np.nan])),
        gen.write_histogram_summary(w, 1, "a", tf.constant([np.inf])),
        gen.write_image_summary(w, 1, "a", tf.zeros([2, 2, 1]), color),
        gen.write_image_summary(w, 1, "a", tf.zeros([1, 2, 2, 2]), color),
        gen.write_image_summary(w, 1, "a", tf.zeros([1, 2, 2, 4]), color[:3]),
        gen.write_image_summary(w, 1, "a", tf.zeros([1, 2, 2, 4]), color[0]),
        gen.write_audio_summary(w, 1, "a", tf.zeros([1, 2]), 0.0),
    ]
    make = [gen.create_summary_file_writer(w, str(tmp_path / "log"), 10, 120000, "")]
    both.agree([both.run(target, r, before=make)[0] for r in runs], [both.run("", r, before=make)[0] for r in runs])
    # TensorFlow's process ends here
    for r in (gen.write_scalar_summary(w, [1], "a", 1.0), gen.write_scalar_summary(w, 1, ["a"], 1.0), gen.write_scalar_summary(w, 1, "a", tf.zeros([0])), gen.write_audio_summary(w, 1, "a", tf.zeros([3]), 1.0),
              gen.write_summary(w, 1, 1.0, ["a"], ""), gen.import_event(w, [b""]), gen.write_graph_summary(w, 1, [b""])):
        assert both.run(target, r, before=make)[0].code == 3
    assert both.run(target, gen.create_summary_db_writer(w, str(tmp_path / "db"), "e", "r", "u"))[0].code == 12
