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
    "window_error": lambda: D.from_tensor_slices([1.0, 0.0, 2.0, 4.0, 5.0]).map(lambda x: tf.debugging.check_numerics(1 / x, "bad")).window(2, shift=2).flat_map(lambda w: w.batch(2)),
    "sample": lambda: tf.data.experimental.sample_from_datasets([D.range(100, 110), D.range(5)], [0.6, 0.4], seed=3),
    "choose": lambda: tf.data.experimental.choose_from_datasets([D.from_tensors("a").repeat(2), D.from_tensors("b").repeat()], D.range(2).repeat(5)),
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


READERS = {
    "lines": lambda f: (tf.TextLineReader(skip_header_lines=1), "lines?.txt"),
    "lines_skip_all": lambda f: (tf.TextLineReader(skip_header_lines=50), "lines?.txt"),
    "records": lambda f: (tf.TFRecordReader(), "recs?"),
    "records_gzip": lambda f: (tf.TFRecordReader(options=tf.io.TFRecordOptions(compression_type="GZIP")), "recs?.gz"),
    "fixed": lambda f: (tf.FixedLengthRecordReader(record_bytes=10, header_bytes=4, footer_bytes=2), "fixed?.bin"),
    "fixed_hop": lambda f: (tf.FixedLengthRecordReader(record_bytes=10, header_bytes=4, footer_bytes=2, hop_bytes=3), "fixed?.bin"),
    "whole": lambda f: (tf.WholeFileReader(), "fixed?.bin"),
    "identity": lambda f: (tf.IdentityReader(), "fixed?.bin"),
    "missing": lambda f: (tf.TextLineReader(), "nowhere"),
}


def read_all(target, files, make, n):
    with tf.Graph().as_default(), tf.device(W0 if target else None):
        reader, pattern = make(files)
        names = sorted(str(p) for p in files.glob(pattern)) or [str(files / pattern)]
        queue = tf.train.string_input_producer(names, num_epochs=2, shuffle=False)
        fetch = reader.read(queue) if n == 1 else reader.read_up_to(queue, n)
        counts = [reader.num_records_produced(), reader.num_work_units_completed()]
        reset = reader.reset()
        with tf.Session(target, config=tf.ConfigProto(operation_timeout_in_ms=60000)) as s:
            s.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            coord = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(s, coord)
            got = drain(s, fetch, 60)
            got.append(s.run(counts))
            s.run(reset)
            got.append(s.run(counts))
            coord.request_stop()
            coord.join(threads, stop_grace_period_secs=10, ignore_live_threads=True)
            return got


@pytest.mark.asan
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("name", READERS)
def test_readers(fresh, files, name, n):
    same(read_all("", files, READERS[name], n), read_all(fresh.target("worker"), files, READERS[name], n))


@pytest.mark.asan
def test_close_ends_blocked(fresh):
    """A session that is closed under a blocked get_next ends it, and the task goes on."""
    with tf.Graph().as_default(), tf.device(W0):
        q = tf.FIFOQueue(1, [tf.int32], [[]])
        it = tf.data.make_initializable_iterator(D.range(5).map(lambda x: tf.cast(x, tf.int32) + q.dequeue()).prefetch(1))
        nxt = it.get_next()
        s = tf.Session(fresh.target("worker"))
        s.run(it.initializer)
        raised = []

        def blocked():
            try:
                s.run(nxt)
            except Exception as e:  # pylint: disable=broad-except
                raised.append(type(e).__name__)

        t = threading.Thread(target=blocked)
        t.start()
        time.sleep(0.5)
        assert t.is_alive()
        s.close()
        t.join(20)
        assert not t.is_alive() and raised
        with tf.Session(fresh.target("worker")) as s2:
            s2.run(it.initializer)
            s2.run(q.enqueue(10))
            assert s2.run(nxt) == 10


def test_reset_drops_iterators(fresh):
    """After Reset a shared iterator is gone: who asks for it finds one that was never initialised."""
    with tf.Graph().as_default(), tf.device(W0):
        it = tf.data.make_initializable_iterator(D.range(1000).prefetch(10), shared_name="shared")
        nxt = it.get_next()
        with tf.Session(fresh.target("worker")) as s:
            s.run(it.initializer)
            assert s.run(nxt) == 0
        with tf.Session(fresh.target("worker")) as s:
            assert s.run(nxt) == 1  # shared between sessions
        tf.Session.reset(fresh.target("worker"))
        with tf.Session(fresh.target("worker")) as s:
            with pytest.raises(tf.errors.FailedPreconditionError):
                s.run(nxt)


def test_feedable_and_reinitializable(fresh):
    """String handles choose between iterators; one iterator walks over several datasets."""
    def program(target):
        with tf.Graph().as_default(), tf.device(W0 if target else None):
            a, b = D.range(3), D.range(100, 105).repeat()
            handle = tf.placeholder(tf.string, [])
            feedable = tf.data.Iterator.from_string_handle(handle, tf.data.get_output_types(a), tf.data.get_output_shapes(a))
            nxt = feedable.get_next()
            one, two = tf.data.make_initializable_iterator(a), tf.data.make_one_shot_iterator(b)
            h1, h2 = one.string_handle(), two.string_handle()
            either = tf.data.Iterator.from_structure(tf.data.get_output_types(a), tf.data.get_output_shapes(a))
            init_a, init_b, value = either.make_initializer(a), either.make_initializer(b), either.get_next()
            opt = tf.data.experimental.get_next_as_optional(one)
            has = opt.has_value()
            out = []
            with tf.Session(target, config=tf.ConfigProto(operation_timeout_in_ms=60000)) as s:
                s.run(one.initializer)
                x, y = s.run([h1, h2])
                for h in (x, y, y, x, x, y, x, y):
                    out.append(feed(s, nxt, {handle: h}))
                for init in (init_a, init_b, init_a):
                    s.run(init)
                    out.append(drain(s, value, 4))
                s.run(one.initializer)
                out.append([s.run(has) for _ in range(5)])
                bad = tf.data.make_initializable_iterator(D.range(2))
                out.append(drain(s, bad.get_next(), 1))
            return out

    def feed(s, fetch, feeds):
        try:
            return s.run(fetch, feeds)
        except tf.errors.OpError as e:
            return type(e).__name__

    same(program(""), program(fresh.target("worker")))


def test_reduce_and_single(fresh):
    def program(target):
        with tf.Graph().as_default(), tf.device(W0 if target else None):
            v = [D.range(10).reduce(np.int64(5), lambda s, x: s + x),
                 tf.data.experimental.get_single_element(D.range(3, 4).map(lambda x: (x, -x))),
                 tf.data.experimental.cardinality(D.range(10).batch(3).repeat(2)), tf.data.experimental.cardinality(D.range(10).repeat())]
            bad = [tf.data.experimental.get_single_element(D.range(0)), tf.data.experimental.get_single_element(D.range(2))]
            with tf.Session(target, config=tf.ConfigProto(operation_timeout_in_ms=60000)) as s:
                return [s.run(v), drain(s, bad[0], 1), drain(s, bad[1], 1)]

    same(program(""), program(fresh.target("worker")))


def test_unsupported_names_itself(fresh):
    with tf.Graph().as_default(), tf.device(W0):
        nxt = tf.data.make_one_shot_iterator(D.range(3).map(lambda x: tf.py_func(lambda v: v, [x], tf.int64))).get_next()
        with tf.Session(fresh.target("worker")) as s:
            with pytest.raises(tf.errors.UnimplementedError, match="PyFunc"):
                s.run(nxt)


SPEC = {"x": tf.io.FixedLenFeature([2], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64), "tags": tf.io.VarLenFeature(tf.string),
        "sometimes": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True, default_value=-1)}

PARSING = {
    "single": lambda f: tf.data.TFRecordDataset(str(f / "recs0")).map(lambda r: tf.io.parse_single_example(r, {k: v for k, v in SPEC.items() if k != "sometimes"})),
    "batched": lambda f: tf.data.TFRecordDataset(str(f / "recs1")).batch(4).map(lambda r: tf.io.parse_example(r, SPEC)),
    "single_then_batch": lambda f: tf.data.TFRecordDataset(str(f / "recs2")).map(lambda r: tf.io.parse_single_example(r, {"y": SPEC["y"], "tags": SPEC["tags"]})).batch(3),
    "columns": lambda f: tf.data.TFRecordDataset(str(f / "recs2")).batch(3).map(lambda r: tf.io.parse_example(r, tf.feature_column.make_parse_example_spec(
        [tf.feature_column.numeric_column("x", [2]), tf.feature_column.categorical_column_with_hash_bucket("tags", 10)]))),
    "missing": lambda f: tf.data.TFRecordDataset(str(f / "recs0")).map(lambda r: tf.io.parse_single_example(r, {"nothing": tf.io.FixedLenFeature([1], tf.int64)})),
    "parse_example_dataset": lambda f: tf.data.TFRecordDataset(str(f / "recs1")).batch(4).apply(tf.data.experimental.parse_example_dataset(SPEC)),
    "batched_features": lambda f: tf.data.experimental.make_batched_features_dataset(str(f / "recs?"), 4, {"y": SPEC["y"], "tags": SPEC["tags"]}, num_epochs=1, shuffle_seed=3),
    "parse_dataset": lambda f: tf.data.TFRecordDataset(str(f / "recs1")).batch(2).map(lambda r: tf.io.parse_example(r, SPEC), num_parallel_calls=2).prefetch(1),
}


@pytest.mark.asan
@pytest.mark.parametrize("name", PARSING)
def test_parsing(fresh, files, name):
    both(fresh, lambda: PARSING[name](files))


def test_queue_runner_training_input(fresh, files):
    """Readers, batches and parsing on queue runners, as TensorFlow 1 programs feed themselves; a variable on the ps."""
    def program(target):
        with tf.Graph().as_default(), tf.device(W0 if target else None):
            names = tf.train.string_input_producer(sorted(str(p) for p in files.glob("recs?")), num_epochs=1, shuffle=False)
            _, record = tf.TFRecordReader().read(names)
            x, y = (lambda d: (d["x"], d["y"]))(tf.io.parse_single_example(record, {"x": SPEC["x"], "y": SPEC["y"]}))
            bx, by = tf.train.batch([x, y], 5, num_threads=1, allow_smaller_final_batch=True)
            with tf.device("/job:ps/task:0" if target else None):
                w = tf.get_variable("w", [2], initializer=tf.zeros_initializer())
            loss = tf.reduce_mean((tf.linalg.matvec(bx, w) - tf.cast(by, tf.float32) / 100) ** 2)
            train = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
            with tf.Session(target, config=tf.ConfigProto(operation_timeout_in_ms=60000)) as s:
                s.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
                coord = tf.train.Coordinator()
                threads = tf.train.start_queue_runners(s, coord)
                losses = []
                try:
                    while True:
                        losses.append(s.run([loss, train])[0])
                except tf.errors.OutOfRangeError:
                    pass
                coord.request_stop()
                coord.join(threads, stop_grace_period_secs=10, ignore_live_threads=True)
                return losses

    a, b = program(""), program(fresh.target("worker"))
    assert len(a) == len(b) == 6
    np.testing.assert_allclose(a, b, rtol=1e-5)


def on_device(target, device, build, kind):
    with tf.Graph().as_default():
        tf.set_random_seed(7)
        with tf.device(device):
            it = tf.data.make_one_shot_iterator(build()) if kind == "one_shot" else tf.data.make_initializable_iterator(build())
            nxt = it.get_next()
        with tf.Session(target, config=tf.ConfigProto(operation_timeout_in_ms=60000)) as s:
            if kind != "one_shot":
                s.run(it.initializer)
            return drain(s, nxt, 60)


@pytest.mark.parametrize("kind", ["init", "one_shot"])
@pytest.mark.parametrize("name", ["map", "flat_map", "whole", "filter"])
def test_on_another_task(fresh, name, kind):
    """Functions reach the task that has the dataset with its part of the graph."""
    same(on_device("", None, PIPELINES[name], kind), on_device(fresh.target("worker"), "/job:worker/task:1", PIPELINES[name], kind))


def test_under_tensorflows_master(cluster):
    """A TensorFlow master puts the pipeline on a task of ours."""
    c = cluster(ps=1, workers=1, worker_kind="tf")
    for name in ("map", "flat_map", "whole"):
        for kind in ("init", "one_shot"):
            same(on_device("", None, PIPELINES[name], kind), on_device(c.target("worker"), "/job:ps/task:0", PIPELINES[name], kind))
