"""AutoShardDataset: the part of a dataset that each worker of a strategy gets, by files or by elements. TensorFlow computes the same parts in its own process."""
import numpy as np
import pytest
import tensorflow as tf

import both

tf1 = tf.compat.v1
D = tf1.data.Dataset
W0 = "/job:worker/task:0"
OFF, AUTO, FILE, DATA, HINT = -1, 0, 1, 2, 3


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("shards")
    for i in range(5):
        (tmp / f"lines{i}").write_text("".join(f"{i}{j}\n" for j in range(3)))
        with tf1.io.TFRecordWriter(str(tmp / f"recs{i}")) as w:
            for j in range(4):
                w.write(b"%d%d" % (i, j))
    return tmp


def names(files, what):
    return [str(files / f"{what}{i}") for i in range(5)]


def lines(f):
    return tf1.data.TextLineDataset(f)


def with_policy(d, policy):
    o = tf.data.Options()
    o.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy(policy)
    return d.with_options(o)


PIPELINES = {
    "lines of files": lambda f: D.from_tensor_slices(names(f, "lines")).flat_map(lines),
    "records, interleaved": lambda f: D.from_tensor_slices(names(f, "recs")).interleave(tf1.data.TFRecordDataset, cycle_length=2).map(lambda x: tf.strings.join([x, "!"])),
    "a reader in a map": lambda f: D.from_tensor_slices(names(f, "lines")).map(lines).interleave(lambda d: d, cycle_length=2),
    "files from a pattern, shuffled": lambda f: D.list_files(str(f / "lines*"), shuffle=False).shuffle(3, seed=5).flat_map(lines).batch(2),
    "a reader of a tensor": lambda f: lines(names(f, "lines")).batch(2),
    "two kinds of files": lambda f: D.zip((D.from_tensor_slices(names(f, "lines")).flat_map(lines), D.from_tensor_slices(names(f, "recs")).flat_map(tf1.data.TFRecordDataset))),
    "numbers": lambda f: D.range(11).map(lambda x: tf.as_string(x)).batch(2).prefetch(1),
    "shuffled numbers": lambda f: D.range(11).shuffle(4, seed=3).map(lambda x: tf.as_string(x)).repeat(2),
    "files and numbers": lambda f: D.zip((D.from_tensor_slices(names(f, "lines")).flat_map(lines), D.range(20))),
    "counted": lambda f: D.from_tensor_slices(names(f, "lines")).flat_map(lines).apply(tf.data.experimental.assert_cardinality(15)),
    "a marked place": lambda f: D.range(11).shard(tf.data.experimental.SHARD_HINT, 0).map(lambda x: tf.as_string(x * x)),
    "one file": lambda f: D.from_tensor_slices(names(f, "lines")[:1]).flat_map(lines),
    "nothing": lambda f: D.range(0).map(lambda x: tf.as_string(x)),
    "from a variable": lambda f: (lambda v: D.range(6).map(lambda x: tf.as_string(v.assign_add(x))))(tf1.get_variable("v", initializer=np.int64(100), use_resource=True)),
}


def elements(target, make):
    with tf.Graph().as_default():
        with tf1.device(W0 if target else None):
            it = tf1.data.make_initializable_iterator(make())
            got = tf.nest.flatten(it.get_next())
        out = []
        with tf1.Session(target, config=tf1.ConfigProto(operation_timeout_in_ms=60000)) as s:
            s.run(tf1.global_variables_initializer())
            try:
                s.run(it.initializer)
                while len(out) < 40:
                    out.append(s.run(got))
            except tf.errors.OpError as e:
                out.append(both.Failed(e.error_code, e.message))
        return out


def shard(d, workers, index, policy, replicas=0):
    from tensorflow.python.data.experimental.ops import distribute

    d = with_policy(d, policy)
    return distribute._AutoShardDatasetV1(d, workers, index, replicas)


@pytest.mark.parametrize("policy", [OFF, pytest.param(AUTO, marks=pytest.mark.asan), FILE, DATA, HINT], ids=["off", "auto", "file", "data", "hint"])
@pytest.mark.parametrize("case", PIPELINES)
def test_parts(target, files, case, policy):
    seen = 0
    for workers, index in ((1, 0), (2, 0), (2, 1), (7, 6)):
        def make():
            return shard(PIPELINES[case](files), workers, index, policy)

        seen += len(both.agree(elements(target, make), elements("", make)))
    assert seen >= 4


def test_rebatched_elements(target):
    for replicas in (0, 2, 3):
        def make():
            return shard(D.range(24).batch(6).rebatch([3, 3]), 2, 1, DATA, replicas)

        both.agree(elements(target, make), elements("", make))


@pytest.mark.parametrize("workers, index", [(0, 0), (2, 2), (2, -1)])
def test_bad_numbers(target, workers, index):
    def make():
        return shard(D.range(3), workers, index, AUTO)

    got = both.agree(elements(target, make), elements("", make))
    assert isinstance(got[0], both.Failed)


def test_its_older_name(target, files):
    def make():
        d = PIPELINES["lines of files"](files)
        old = tf.raw_ops.ExperimentalAutoShardDataset(input_dataset=d._variant_tensor, num_workers=tf.constant(2, tf.int64), index=tf.constant(1, tf.int64), output_types=[tf.string], output_shapes=[[]])
        from tensorflow.python.data.ops import dataset_ops

        return dataset_ops._VariantDataset(old, tf.TensorSpec([], tf.string))

    assert len(both.agree(elements(target, make), elements("", make))) > 5
