"""RecordInput: every record once in each epoch, in an order of its own, whatever the files look like. (TensorFlow's order depends on its threads, so there is
none to compare with; what its session says of mistakes is compared.)"""
import threading

import pytest
import tensorflow as tf
from tensorflow.python.ops import gen_data_flow_ops

tf1 = tf.compat.v1


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


def write(path, n_files, n_records, kind=""):
    """Files of 0, n, 2 n … records; what is in them."""
    all_ = []
    for i in range(n_files):
        records = [b"%d-%d-" % (i, j) + b"x" * (j % 50) for j in range(i * n_records)]
        with tf.io.TFRecordWriter(str(path / f"r{i}"), kind) as w:
            for r in records:
                w.write(r)
        all_ += records
    return all_


def read(session, op, n):
    got = []
    while len(got) < n:
        got += session.run(op).tolist()
    return got


@pytest.mark.asan
@pytest.mark.parametrize("kind", ["", "GZIP", "ZLIB"])
@pytest.mark.parametrize("buffer,parallel", [(1, 1), (7, 3), (100000, 16), (50, 0)])
def test_epochs(target, tmp_path, kind, buffer, parallel):
    want = write(tmp_path, 5, 30, kind)
    op = gen_data_flow_ops.record_input(f"{tmp_path}/r*", file_random_seed=7, file_shuffle_shift_ratio=0.4, file_buffer_size=buffer, file_parallelism=parallel, batch_size=10, compression_type=kind)
    with tf1.Session(target) as s:
        epochs = [read(s, op, len(want)) for _ in range(3)]
    assert all(len(e) == len(want) for e in epochs)
    assert all(sorted(e) == sorted(want) for e in epochs)
    assert len({tuple(e) for e in epochs}) == 3
    with tf1.Session(target) as s:  # the same seed, the same order
        assert read(s, op, len(want)) == epochs[0]


@pytest.mark.asan
def test_many_at_once_and_batches_over_epochs(target, tmp_path):
    want = write(tmp_path, 4, 20)
    op = gen_data_flow_ops.record_input(f"{tmp_path}/r[01],{tmp_path}/r2,{tmp_path}/r3", batch_size=len(want) * 2)
    small = gen_data_flow_ops.record_input(f"{tmp_path}/r*", batch_size=len(want) // 12)
    empty = gen_data_flow_ops.record_input(f"{tmp_path}/r*", batch_size=0)
    with tf1.Session(target) as s:
        got = s.run(op).tolist()
        assert sorted(got[:len(want)]) == sorted(got[len(want):]) == sorted(want)
        assert s.run(empty).size == 0
        parts = []
        threads = [threading.Thread(target=lambda: parts.append(s.run(small).tolist())) for _ in range(12)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert sorted(sum(parts, [])) == sorted(want)


@pytest.mark.asan
def test_mistakes(target, tmp_path):
    write(tmp_path, 2, 20)
    good = (tmp_path / "r1").read_bytes()
    (tmp_path / "broken").write_bytes(good[:-5])
    pattern = f"{tmp_path}/r*"
    bad = [dict(file_pattern=f"{tmp_path}/none*"), dict(file_pattern=pattern, file_parallelism=-1), dict(file_pattern=f"{tmp_path}/broken")]
    ours = [(dict(file_pattern=f"{tmp_path}/r0"), tf.errors.OutOfRangeError), (dict(file_pattern=pattern, batch_size=-1), tf.errors.InvalidArgumentError),
            (dict(file_pattern=pattern, file_buffer_size=0), tf.errors.InvalidArgumentError), (dict(file_pattern=pattern, batch_size=2**40), tf.errors.InvalidArgumentError),
            (dict(file_pattern=pattern, compression_type="LZ4"), tf.errors.InvalidArgumentError)]  # TensorFlow waits for ever, or ends
    for attrs in bad:
        op = gen_data_flow_ops.record_input(**attrs)
        found = []
        for where in ("", target):
            with tf1.Session(where) as s:
                for _ in range(2):  # and it stays so
                    with pytest.raises(tf.errors.OpError) as e:
                        s.run(op)
                    found.append(type(e.value))
        assert len(set(found)) == 1, found
    for attrs, error in ours:
        op = gen_data_flow_ops.record_input(**attrs)
        with tf1.Session(target) as s, pytest.raises(error):
            s.run(op)


@pytest.mark.asan
def test_cancelled(target, tmp_path):
    """Steps that run out of time, one reading and others behind it; then it goes on."""
    want = write(tmp_path, 3, 2000)
    op = gen_data_flow_ops.record_input(f"{tmp_path}/r*", file_buffer_size=100, batch_size=2**24)
    one = gen_data_flow_ops.record_input(f"{tmp_path}/r*", file_buffer_size=100, batch_size=1)
    with tf1.Session(target) as s:
        def impatient():
            with pytest.raises(tf.errors.DeadlineExceededError):
                s.run(op, options=tf1.RunOptions(timeout_in_ms=300))
            ended.append(1)
        ended = []
        threads = [threading.Thread(target=impatient) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(ended) == 4
        assert s.run(one)[0] in want
