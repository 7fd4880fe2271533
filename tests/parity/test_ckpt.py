"""Checkpoints both ways: files that we write are, byte for byte, TensorFlow's; files that TensorFlow writes, we read."""
import itertools
import os

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import errors

import kernels
from kernels import Case, Ours, run_tf

NUMERIC = [tf.float32, tf.float64, tf.int32, tf.uint8, tf.int16, tf.int8, tf.complex64, tf.int64, tf.bool, tf.bfloat16, tf.uint16,
           tf.complex128, tf.float16, tf.uint32, tf.uint64]
V1 = [t for t in NUMERIC if t not in (tf.bfloat16, tf.uint32, tf.uint64)]
SHAPES = [(), (1,), (0,), (3, 0, 2), (5,), (2, 3), (1, 1, 7)]


def strings(*v):
    return np.array(v, dtype=object)


def scalar(s):
    a = np.empty((), dtype=object)
    a[()] = s
    return a


def value(dtype, shape, rng):
    if dtype == tf.string:
        a = np.empty(shape, dtype=object)
        for i in np.ndindex(*shape):
            a[i] = rng.bytes(int(rng.choice([0, 1, 5, 12, 13, 127, 128, 300, 20000])))
        return a
    x = rng.integers(0, 2 if dtype == tf.bool else 100, size=shape)
    return np.asarray(x).astype(dtype.as_numpy_dtype)


@pytest.fixture(scope="module")
def ours():
    o = Ours(kernels.find_runop())
    yield o
    assert o.close() == 0


def good(r):
    assert r[0] == 0, r[1]
    return r[2]


def both_save(ours, tmp_path, names, values, slices=None, op="SaveV2"):
    """The same SaveV2 by both; returns the two prefixes."""
    slices = slices or [""] * len(names)
    out = []
    for who, run in (("tf", run_tf), ("our", ours.run)):
        os.makedirs(tmp_path / who, exist_ok=True)
        prefix = str(tmp_path / who / "ckpt")
        good(run(Case(op, [scalar(prefix), strings(*names), strings(*slices), values])))
        out.append(prefix)
    return out


def same_files(a, b):
    for suffix in (".index", ".data-00000-of-00001"):
        assert open(a + suffix, "rb").read() == open(b + suffix, "rb").read(), suffix


def equal(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tolist() == b.tolist()


def test_every_dtype_and_shape(ours, tmp_path):
    rng = np.random.default_rng(1)
    names, values = [], []
    for i, (t, s) in enumerate(itertools.product(NUMERIC[:8] + [tf.string], SHAPES)):
        if len(names) == 58:
            break
        names.append("%s/v%d" % (t.name, i * 37 % 101))
        values.append(value(t, s, rng))
    theirs, mine = both_save(ours, tmp_path, names, values)
    same_files(theirs, mine)
    for t in NUMERIC + [tf.string]:
        d = tmp_path / t.name
        d.mkdir()
        vals = [value(t, s, rng) for s in SHAPES]
        names = ["x%d" % i for i in range(len(SHAPES))]
        theirs, mine = both_save(ours, d, names, vals)
        same_files(theirs, mine)
        reader = tf.train.load_checkpoint(mine)
        for n, v in zip(names, vals):
            got = reader.get_tensor(n)
            assert np.array_equal(got, v), (t, n)
        back = good(ours.run(Case("RestoreV2", [scalar(theirs), strings(*names), strings(*[""] * len(names))], dtypes=[t] * len(names))))
        for b, v in zip(back, vals):
            assert equal(b, v), (t, v.shape)
        assert not [f for f in os.listdir(d / "our") if "tempstate" in f]


def test_slices_and_merge(ours, tmp_path):
    full = np.arange(70, dtype=np.float32).reshape(10, 7)
    wide = np.arange(2000 * 3, dtype=np.int64).reshape(2000, 3)
    parts = [("p", full[:4], "10 7 0,4:-"), ("p", full[4:], "10 7 4,6:-"), ("w", wide[:100, :2], "2000 3 0,100:0,2"),
             ("w", wide[:100, 2:], "2000 3 0,100:2,1"), ("w", wide[100:], "2000 3 100,1900:0,3"), ("whole", full, "10 7 0,10:-"), ("z", full[0], "")]
    names, vals, slices = [p[0] for p in parts], [p[1] for p in parts], [p[2] for p in parts]
    theirs, mine = both_save(ours, tmp_path, names, vals, slices)
    same_files(theirs, mine)
    # In two shards, merged by each side.
    for who, run in (("tf", run_tf), ("our", ours.run)):
        d = tmp_path / ("m_" + who)
        (d / "tmp").mkdir(parents=True)
        for i, take in enumerate(([0, 2, 5], [1, 3, 4, 6])):
            good(run_tf(Case("SaveV2", [scalar(str(d / "tmp" / ("part-%d" % i))), strings(*[names[j] for j in take]),
                                        strings(*[slices[j] for j in take]), [vals[j] for j in take]])))
        if who == "tf":
            good(run(Case("MergeV2Checkpoints", [strings(*[str(d / "tmp" / ("part-%d" % i)) for i in (0, 1)]), scalar(str(d / "all"))])))
        else:
            # runop runs everything several times; the second merge finds nothing left to merge.
            r = run(Case("MergeV2Checkpoints", [strings(*[str(d / "tmp" / ("part-%d" % i)) for i in (0, 1)]), scalar(str(d / "all"))]))
            assert r[0] in (0, 3, 90, 91, 92), r[1]
        assert not (d / "tmp").exists()
    assert open(tmp_path / "m_tf" / "all.index", "rb").read() == open(tmp_path / "m_our" / "all.index", "rb").read()
    for prefix in (mine, theirs, str(tmp_path / "m_tf" / "all"), str(tmp_path / "m_our" / "all")):
        for spec, want in (("", full), ("10 7 0,4:-", full[:4]), ("10 7 2,5:1,3", full[2:7, 1:4]), ("10 7 9,1:6,1", full[9:, 6:])):
            got = good(ours.run(Case("RestoreV2", [scalar(prefix), strings("p"), strings(spec)], dtypes=[tf.float32])))
            assert equal(got[0], want), spec
        for spec, want in (("", wide), ("2000 3 50,100:1,2", wide[50:150, 1:])):
            got = good(ours.run(Case("RestoreV2", [scalar(prefix), strings("w"), strings(spec)], dtypes=[tf.int64])))
            assert equal(got[0], want), spec
        assert np.array_equal(tf.train.load_checkpoint(prefix).get_tensor("w"), wide)


def test_version_1(ours, tmp_path):
    rng = np.random.default_rng(2)
    for t in V1 + [tf.string]:
        vals = [value(t, s, rng) for s in ((), (5,), (2, 3))]
        names = ["b", "a", "c"]
        for op in ("Save", "SaveSlices"):
            files = []
            for who, run in (("tf", run_tf), ("our", ours.run)):
                f = str(tmp_path / ("%s_%s_%s" % (who, op, t.name)))
                ins = [scalar(f), strings(*names)] + ([strings("", "", "4 3 1,2:-")] if op == "SaveSlices" else []) + [vals]
                good(run(Case(op, ins)))
                files.append(f)
            assert open(files[0], "rb").read() == open(files[1], "rb").read(), (t, op)
            for n, v in list(zip(names, vals))[:2]:
                assert equal(good(ours.run(Case("Restore", [scalar(files[0]), scalar(n)], dt=t)))[0], v)
            got = good(ours.run(Case("RestoreSlice", [scalar(files[0]), scalar("c"), scalar("4 3 1,2:-" if op == "SaveSlices" else "2 3 0,1:-")], dt=t)))[0]
            assert equal(got, vals[2] if op == "SaveSlices" else vals[2][:1])
            # RestoreV2 falls back to version 1.
            assert equal(good(ours.run(Case("RestoreV2", [scalar(files[1]), strings("a"), strings("")], dtypes=[t])))[0], vals[1])


@pytest.mark.parametrize("case", [
    ("RestoreV2", "none", "x", "", tf.float32), ("RestoreV2", "ok", "y", "", tf.float32), ("RestoreV2", "ok", "x", "", tf.int32),
    ("RestoreV2", "ok", "x", "5 0,3", tf.float32), ("RestoreV2", "crc", "x", "", tf.float32), ("RestoreV2", "short", "x", "", tf.float32),
    ("RestoreV2", "index", "x", "", tf.float32), ("RestoreV2", "nodata", "x", "", tf.float32)])
def test_same_error_codes(ours, tmp_path, case):
    op, what, name, spec, dtype = case
    x = np.arange(4, dtype=np.float32)
    prefix = str(tmp_path / "c")
    good(run_tf(Case("SaveV2", [scalar(prefix), strings("x"), strings(""), [x]])))
    data = prefix + ".data-00000-of-00001"
    b = bytearray(open(data, "rb").read())
    if what == "crc":
        b[5] ^= 1
        open(data, "wb").write(b)
    elif what == "short":
        open(data, "wb").write(b[:9])
    elif what == "nodata":
        os.remove(data)
    elif what == "index":
        i = bytearray(open(prefix + ".index", "rb").read())
        i[12] ^= 1
        open(prefix + ".index", "wb").write(i)
    elif what == "none":
        prefix += "_none"
    c = Case(op, [scalar(prefix), strings(name), strings(spec)], dtypes=[dtype])
    theirs, mine = run_tf(c), ours.run(c)
    # A file that is too short is OUT_OF_RANGE in TensorFlow; to us it is lost data like any other.
    want = errors.DATA_LOSS if what == "short" else theirs[0]
    assert mine[0] == want and mine[0] != 0, (theirs[:2], mine[:2])
