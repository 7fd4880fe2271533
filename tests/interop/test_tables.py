"""Lookup tables of every kind against TensorFlow's own session."""
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import gen_lookup_ops as g
from tensorflow.python.ops import lookup_ops

import both

tf1 = tf.compat.v1


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


def keys_of(t, n=5):
    return np.array([b"k%d" % i * (i % 3 * 8 + 1) for i in range(n)], object) if t is object else np.arange(3, 3 + n).astype(t)


def values_of(t, n=5):
    return np.array([b"value %d" % i for i in range(n)], object) if t is object else (np.arange(n) % 2 == 0) if t is bool else np.arange(n).astype(t)


def dt(t):
    return tf.string if t is object else tf.as_dtype(t)


PAIRS = [(np.int32, np.float32), (np.int32, np.float64), (np.int32, np.int32), (np.int64, np.float32), (np.int64, np.int64), (np.int64, object),
         (object, np.int64), (object, np.float32), (object, bool)]


def ordered(keys, values):
    i = np.argsort(keys)
    return keys[i], values[i]


@pytest.mark.asan
def test_hash_tables(target):
    for k, v in PAIRS + [(object, object)]:
        keys, values = keys_of(k), values_of(v)
        for h in (g.hash_table_v2(dt(k), dt(v), use_node_name_sharing=True), g.hash_table_v2(dt(k), dt(v)), g.hash_table(dt(k), dt(v))):
            ref = h.dtype != tf.resource
            find = g.lookup_table_find if ref else g.lookup_table_find_v2
            init = (g.initialize_table if ref else g.initialize_table_v2)(h, keys, values)
            size = (g.lookup_table_size if ref else g.lookup_table_size_v2)(h)
            ask = tf.constant([keys[2], keys[0], keys[2], keys_of(k, 7)[6]], dt(k))
            dflt = tf.constant(values[4], dt(v))
            found = find(h, ask, dflt)
            both.same(target, found)  # not initialised
            both.same(target, size)
            both.same(target, [found, size], before=[init])
            both.same(target, [found, size], before=[init, init])
            both.same(target, [find(h, tf.reshape(ask, [2, 2]), dflt), find(h, ask[0], dflt)], before=[init])
            both.same(target, [find(h, ask, tf.constant(values[:4], dt(v)))], before=[init])


def test_what_tables_refuse(target):
    h = g.hash_table_v2(tf.string, tf.int64)
    p = tf1.placeholder_with_default
    i64 = lambda *v: tf.constant(v, tf.int64)
    good = g.initialize_table_v2(h, ["a", "b"], i64(1, 2))
    for t in (
        g.initialize_table_v2(h, ["a", "b", "a"], i64(1, 2, 3)),
        g.initialize_table_v2(h, ["a", "b", "a"], i64(1, 2, 1)),
        g.initialize_table_v2(h, p(["a", "b"], None), i64(1)),
        g.initialize_table_v2(h, p("a", None), i64(1)),
        g.initialize_table_v2(h, i64(1), i64(1)),
        g.initialize_table_v2(h, tf.constant([], tf.string), tf.constant([], tf.int64)),
        g.lookup_table_insert_v2(h, ["a"], i64(1)),
        g.lookup_table_remove_v2(h, ["a"]),
        g.lookup_table_export_v2(h, tf.string, tf.int64),
        g.lookup_table_find_v2(h, i64(1), i64(1)[0]),
        g.lookup_table_find_v2(h, p(["a", "b"], None), p(np.array([1, 2, 3]), None)),
    ):
        both.same(target, t)
    both.same(target, g.initialize_table_v2(h, ["x"], i64(1)), before=[good])
    both.same(target, g.initialize_table_v2(h, ["x", "y"], i64(1, 2)), before=[good])
    both.same(target, g.lookup_table_import_v2(h, ["x"], i64(1)), before=[good])
    m = g.mutable_hash_table_v2(tf.string, tf.int64)
    both.same(target, g.initialize_table_v2(m, ["a"], i64(1)))
    shared = [g.mutable_hash_table_v2(tf.string, v, shared_name="one") for v in (tf.int64, tf.float32)]
    both.same(target, g.lookup_table_size_v2(shared[1]), before=[shared[0].op])
    both.same(target, g.lookup_table_size_v2(g.hash_table_v2(tf.string, tf.int64, shared_name="one")), before=[shared[0].op])
    both.same(target, g.mutable_hash_table_v2(tf.string, tf.int64, shared_name="_x").op)
    both.same(target, g.mutable_hash_table_of_tensors_v2(tf.string, tf.int64, value_shape=[]).op)


def test_mutable_tables(target):
    for k, v in PAIRS:
        for shape in ((), (2,)):
            keys, values = keys_of(k), values_of(v)
            if shape:
                values = np.stack([values, values[::-1]], 1)
                h = g.mutable_hash_table_of_tensors_v2(dt(k), dt(v), value_shape=[2])
            else:
                h = g.mutable_hash_table_v2(dt(k), dt(v))
            put = g.lookup_table_insert_v2(h, tf.constant(keys, dt(k)), tf.constant(values, dt(v)))
            swap = g.lookup_table_insert_v2(h, tf.constant(keys[:2], dt(k)), tf.constant(values[2:4], dt(v)))
            drop = g.lookup_table_remove_v2(h, tf.constant([keys[1], keys[1], keys[3]], dt(k)))
            ask = tf.constant([keys[2], keys[1], keys[0], keys[3]], dt(k))
            find = g.lookup_table_find_v2(h, ask, tf.constant(values[4], dt(v)))
            size = g.lookup_table_size_v2(h)
            export = g.lookup_table_export_v2(h, dt(k), dt(v))
            imp = g.lookup_table_import_v2(h, tf.constant(keys[:1], dt(k)), tf.constant(values[:1], dt(v)))
            for before in ([], [put], [put, swap], [put, drop], [put, drop, put, swap], [put, imp], [put, put, drop, drop]):
                both.same(target, [find, size], before=before)
                a, b = (both.run(t, export, before=before)[0] for t in ("", target))
                both.close(ordered(*b), ordered(*a), 0, 0)


def test_many_entries_come_and_go(target):
    h = g.mutable_hash_table_v2(tf.int64, tf.int64)
    p = tf1.placeholder(tf.int64, [None])
    put, drop = g.lookup_table_insert_v2(h, p, p * 3), g.lookup_table_remove_v2(h, p)
    q = tf.range(0, 4000, dtype=tf.int64)
    find = g.lookup_table_find_v2(h, q, tf.constant(-1, tf.int64))
    rng = np.random.RandomState(0)
    model = {}
    with tf1.Session(target) as s:
        for _ in range(12):
            a, b = rng.randint(0, 4000, 1500), rng.randint(0, 4000, 1200)
            s.run(put, {p: a})
            s.run(drop, {p: b})
            model.update({x: 3 * x for x in a})
            for x in b:
                model.pop(x, None)
            assert s.run(find).tolist() == [model.get(i, -1) for i in range(4000)]
        assert s.run(g.lookup_table_size_v2(h)) == len(model)


def test_dense_tables_have_tensorflows_buckets(target):
    """Exports show the buckets, which checkpoints hold: they must lie where TensorFlow puts them."""
    for k, v in [(np.int64, np.int64), (np.int64, np.float32), (np.int32, np.float64), (object, np.int64), (object, bool)]:
        for kshape, vshape in (((), ()), ((2,), ()), ((), (3,))):
            if kshape and k is np.int32:
                continue
            n = 20
            keys, values = keys_of(k, n + 2), values_of(v, n)
            if kshape:
                keys = np.stack([keys, keys[::-1]], 1)
            if vshape:
                values = np.stack([values] * 3, 1)
            h = g.mutable_dense_hash_table_v2(tf.constant(keys[n], dt(k)), tf.constant(keys[n + 1], dt(k)), dt(v), value_shape=vshape, initial_num_buckets=8)
            kt, vt = tf.constant(keys[:n], dt(k)), tf.constant(values, dt(v))
            put = g.lookup_table_insert_v2(h, kt, vt)
            drop = g.lookup_table_remove_v2(h, kt[3:9])
            more = g.lookup_table_insert_v2(h, kt[5:7], vt[0:2])
            find = g.lookup_table_find_v2(h, kt[:10], vt[0])
            size = g.lookup_table_size_v2(h)
            export = g.lookup_table_export_v2(h, dt(k), dt(v))
            for before in ([], [put], [put, drop], [put, drop, more], [put, export, drop]):
                both.same(target, [find, size, export], before=before)
            e = both.run("", export, before=[put, drop])[0]
            imp = g.lookup_table_import_v2(h, tf1.placeholder_with_default(tf.constant(e[0], dt(k)), None),
                                         tf1.placeholder_with_default(tf.constant(e[1], dt(v)), None))
            both.same(target, [find, size], before=[imp])
            both.same(target, g.lookup_table_find_v2(h, tf.constant(keys[n:], dt(k)), vt[0]))
            both.same(target, g.lookup_table_insert_v2(h, tf.constant(keys[n + 1:], dt(k)), vt[:1]))
    one = tf.constant(1, tf.int64)
    for args in (dict(deleted_key=one), dict(initial_num_buckets=5), dict(max_load_factor=1.5), dict(value_shape=[1, 2]), dict(deleted_key=[one, one])):
        kw = dict(empty_key=one, deleted_key=tf.constant(2, tf.int64), value_dtype=tf.int64)
        kw.update(args)
        both.same(target, g.mutable_dense_hash_table_v2(**kw).op)


def test_vocabulary_files(target, tmp_path):
    plain, columns, bad = tmp_path / "plain", tmp_path / "columns", tmp_path / "bad"
    plain.write_bytes(b"alpha\r\nbeta\n gamma \ndelta")
    columns.write_bytes(b"1,one,0.5\n2,two,-1.5e3\n3,three,inf\n4,,7\n")
    bad.write_bytes(b"a\n\nb\n")
    WHOLE, LINE = -2, -1
    for path, kt, ki, vt, vi, kw, ask in (
        (plain, tf.string, WHOLE, tf.int64, LINE, {}, ["beta", " gamma ", "no", "delta"]),
        (plain, tf.string, WHOLE, tf.int64, LINE, dict(vocab_size=2), ["beta", "delta"]),
        (plain, tf.string, WHOLE, tf.int64, LINE, dict(vocab_size=9), ["beta"]),
        (plain, tf.string, WHOLE, tf.int64, LINE, dict(offset=10), ["beta"]),
        (plain, tf.int64, LINE, tf.string, WHOLE, {}, [0, 1, 2, 9]),
        (columns, tf.string, 1, tf.int64, 0, dict(delimiter=","), ["one", "three", ""]),
        (columns, tf.string, 1, tf.int64, 0, dict(delimiter=",", offset=5), ["one", "three", ""]),
        (columns, tf.string, 1, tf.int32, 0, dict(delimiter=",", offset=5), ["one", "three", ""]),
        (columns, tf.int64, 0, tf.float32, 2, dict(delimiter=","), [1, 2, 3, 4]),
        (columns, tf.string, 1, tf.float64, 2, dict(delimiter=","), ["one", "two", "three"]),
        (columns, tf.int64, 1, tf.string, 0, dict(delimiter=","), [1]),
        (columns, tf.string, 5, tf.int64, 0, dict(delimiter=","), ["one"]),
        (columns, tf.string, WHOLE, tf.float32, LINE, {}, ["one"]),
        (columns, tf.string, WHOLE, tf.float32, WHOLE, {}, ["one"]),
        (bad, tf.string, WHOLE, tf.int64, LINE, {}, ["a"]),
        (tmp_path / "none", tf.string, WHOLE, tf.int64, LINE, {}, ["a"]),
    ):
        h = g.hash_table_v2(kt, vt)
        init = g.initialize_table_from_text_file_v2(h, str(path), key_index=ki, value_index=vi, **kw)
        both.same(target, init)
        with tf1.control_dependencies([init]):
            find = g.lookup_table_find_v2(h, tf.constant(ask, kt), tf.constant("none" if vt == tf.string else -1, vt))
            both.same(target, [find, g.lookup_table_size_v2(h)], times=2)


def test_python_interfaces(target, tmp_path):
    """What programs use: tf.lookup and the v1 helpers, with out-of-vocabulary buckets."""
    vocab = tmp_path / "vocab"
    vocab.write_text("a\nb\nc\n")
    words = tf.constant([["a", "x"], ["c", "y"]])
    by_file = lookup_ops.index_table_from_file(str(vocab), num_oov_buckets=3)
    by_tensor = lookup_ops.index_table_from_tensor(["q", "a"], num_oov_buckets=2, hasher_spec=lookup_ops.StrongHashSpec([3, 4]))
    back = lookup_ops.index_to_string_table_from_file(str(vocab), default_value="?")
    static = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "y"], [1.5, 2.5]), -1.0)
    ids = tf.constant([0, 2, 5], tf.int64)
    both.same(target, [by_file.lookup(words), by_tensor.lookup(words), back.lookup(ids), static.lookup(words), static.size()],
              before=[tf1.tables_initializer()])


def test_tables_are_shared_and_reset(target):
    h = g.mutable_hash_table_v2(tf.string, tf.int64, shared_name="shared", container="box")
    own = g.mutable_hash_table_v2(tf.string, tf.int64)
    put = [g.lookup_table_insert_v2(t, ["a"], tf.constant([1], tf.int64)) for t in (h, own)]
    sizes = [g.lookup_table_size_v2(t) for t in (h, own)]
    with tf1.Session(target) as a:
        a.run(put)
        with tf1.Session(target) as b:
            assert b.run(sizes) == [1, 0]
    with tf1.Session(target) as s:
        assert s.run(sizes) == [1, 0]
    tf1.Session.reset(target, ["box"])
    with tf1.Session(target) as s:
        assert s.run(sizes) == [0, 0]


def test_saved_and_restored(target, tmp_path):
    h = lookup_ops.MutableHashTable(tf.string, tf.int64, -1, checkpoint=True, name="words")
    d = lookup_ops.DenseHashTable(tf.int64, tf.float32, -1.0, empty_key=0, deleted_key=-1, checkpoint=True, name="dense")
    put = [h.insert(["a", "b"], tf.constant([1, 2], tf.int64)), d.insert(tf.constant([5, 6], tf.int64), [0.5, 0.6])]
    find = [h.lookup(tf.constant(["b", "c"])), d.lookup(tf.constant([6, 7], tf.int64))]
    saver = tf1.train.Saver()
    for source, other in ((target, ""), ("", target)):
        with tf1.Session(source) as s:
            s.run(put)
            path = saver.save(s, str(tmp_path / ("x" if source else "y")))
        with tf1.Session(other) as s:
            saver.restore(s, path)
            a, b = s.run(find)
            assert a.tolist() == [2, -1] and np.allclose(b, [0.6, -1])


def after(deps, make):
    with tf1.control_dependencies(deps):
        return make()


@pytest.mark.asan
def test_anonymous_tables(target):
    """Tables that live as long as their handle, so within one run; the next run has another one."""
    keys, values = ["a", "b", "c"], tf.constant([1, 2, 3], tf.int64)
    minus = tf.constant(-1, tf.int64)
    h = g.anonymous_hash_table(tf.string, tf.int64)
    put = g.initialize_table_v2(h, keys, values)
    both.same(target, after([put], lambda: [g.lookup_table_find_v2(h, ["c", "x", "a"], minus), g.lookup_table_size_v2(h)]), times=2)
    both.same(target, g.lookup_table_find_v2(h, ["c"], minus))  # not initialised
    both.same(target, after([put], lambda: g.initialize_table_v2(h, ["z"], tf.constant([1], tf.int64))))

    h = g.anonymous_mutable_hash_table(tf.string, tf.int64)
    put = g.lookup_table_insert_v2(h, keys, values)
    gone = after([put], lambda: g.lookup_table_remove_v2(h, ["b", "nobody"]))
    both.same(target, after([gone], lambda: [g.lookup_table_find_v2(h, keys, minus), g.lookup_table_size_v2(h)]), times=2)
    both.same(target, g.lookup_table_size_v2(h))

    h = g.anonymous_mutable_hash_table_of_tensors(tf.int64, tf.float32, value_shape=[2])
    put = g.lookup_table_insert_v2(h, tf.constant([5, 7], tf.int64), [[1.0, 2.0], [3.0, 4.0]])
    both.same(target, after([put], lambda: g.lookup_table_find_v2(h, tf.constant([7, 6, 5], tf.int64), [0.0, -1.0])), times=2)
    both.same(target, g.lookup_table_insert_v2(h, tf1.placeholder_with_default(np.array([5]), None), tf1.placeholder_with_default(np.float32([[1, 2, 3]]), None)))

    i64 = lambda *v: tf.constant(v, tf.int64)
    h = g.anonymous_mutable_dense_hash_table(tf.constant(0, tf.int64), tf.constant(-1, tf.int64), tf.float32, value_shape=[], initial_num_buckets=4)
    put = g.lookup_table_insert_v2(h, i64(*range(1, 20)), np.arange(19, dtype=np.float32))
    gone = after([put], lambda: g.lookup_table_remove_v2(h, i64(3, 4)))
    both.same(target, after([gone], lambda: [g.lookup_table_find_v2(h, i64(19, 3, 1, 40), -5.0), g.lookup_table_size_v2(h)]), times=2)
    for bad in (0, -1):  # the keys that mark empty and deleted places
        both.same(target, g.lookup_table_insert_v2(h, i64(bad), [1.0]))
        both.same(target, g.lookup_table_find_v2(h, i64(bad), 1.0))
    for n in (3, 0, 8):
        h = g.anonymous_mutable_dense_hash_table(tf.constant(0, tf.int64), tf.constant(-1, tf.int64), tf.float32, value_shape=[], initial_num_buckets=n)
        both.same(target, g.lookup_table_size_v2(h))


def test_dense_table_of_old(target):
    """A string for a handle, and no key for deleted ones. (TensorFlow still has the op, but its kernel asks for an input that it lacks; the second kind finds the same.)"""
    for k, empty, deleted in ((tf.int64, -1, -2), (tf.string, "none", "gone")):
        got = []
        for where, v in (("", 2), (target, 1)):
            tf1.reset_default_graph()
            kw = dict(value_dtype=tf.float32, value_shape=[2], initial_num_buckets=4, shared_name="dense_of_old")
            h = g.mutable_dense_hash_table(tf.constant(empty, k), **kw) if v == 1 else g.mutable_dense_hash_table_v2(tf.constant(empty, k), tf.constant(deleted, k), **kw)
            insert, find, size = (getattr(g, "lookup_table_%s%s" % (f, "_v2" if v == 2 else "")) for f in ("insert", "find", "size"))
            keys = tf.constant([1, 2, 3] if k == tf.int64 else ["a", "b", "c"], k)
            put = insert(h, keys, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
            got.append(both.run(where, after([put], lambda: [find(h, tf.reverse(keys, [0]), [0.0, 0.0]), size(h)])) + both.run(where, find(h, tf.constant([empty], k), [0.0, 0.0])))
            tf1.Session.reset(target)
        both.close(got[1][0], got[0][0], 0, 0)
        assert got[1][1].code == got[0][1].code == tf.errors.INVALID_ARGUMENT
