"""Every type that TensorFlow's kernels take, at least once, for ops whose other cases only draw some of them (tools/check-dtypes lists what is missing)."""
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import dtypes

from cases_math import BF16
from kernels import Case as C

NUMBERS = [np.float32, np.float64, np.float16, BF16, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.complex64, np.complex128]
REALS = NUMBERS[:-2]
ANY = NUMBERS + [np.bool_, object]
INDEX = [np.int32, np.int64]


def some(t, *shape, start=0):
    """Small different values; no random ones, so that the cases of other files stay the same."""
    n = int(np.prod(shape))
    x = (np.arange(n) * 7 + 3 + start) % 11
    if t is object:
        return np.array([b"s%d" % v * (1 + 9 * (v % 3 == 0)) for v in x], object).reshape(shape)
    if t is np.bool_:
        return (x % 2 == 0).reshape(shape)
    x = x.reshape(shape)
    return (x - 2j * x).astype(t) if np.dtype(t).kind == "c" else x.astype(t)


def ints(*v, t=np.int32):
    return np.array(v[0] if len(v) == 1 else v, t)


def cases_every_type(rng, quick):
    for t in ANY:
        x = some(t, 3, 4)
        for op in "Shape", "Size":
            for o in tf.int32, tf.int64:
                yield C(op, [x], out_type=o)
        for o in tf.int32, tf.int64:
            yield C("ShapeN", [[x, some(t, 2)]], out_type=o)
        yield C("Squeeze", [some(t, 1, 3, 1)])
        yield C("Squeeze", [some(t, 1, 3, 1)], squeeze_dims=[2])
        for it in INDEX:
            yield C("ExpandDims", [x, ints(1, t=it)])
            yield C("Reshape", [x, ints(2, -1, t=it)])
            wide = C("Tile", [x.astype(np.int32), ints(2, 3, t=it)]) if t is np.uint16 else None  # TensorFlow registers it, but its kernel has forgotten the type
            yield C("Tile", [x, ints(2, 3, t=it)], like=wide)
            yield C("BroadcastTo", [some(t, 3, 1), ints(2, 3, 4, t=it)])
            yield C("Slice", [x, ints(1, 0, t=it), ints(2, 3, t=it)])
            yield C("StridedSlice", [x, ints(2, 0, t=it), ints(0, 4, t=it), ints(-1, 2, t=it)])
            yield C("Transpose", [some(t, 2, 3, 4), ints(2, 0, 1, t=it)])
            yield C("Transpose", [some(t, 33, 20), ints(1, 0, t=it)])
            yield C("ReverseV2", [x, ints([1], t=it)])
            yield C("ConcatV2", [[x, some(t, 2, 4)], ints(0, t=it)])
            if t is not object:
                yield C("Pad", [x, ints([[1, 0], [2, 1]], t=it)])
            for at in INDEX:
                yield C("GatherV2", [x, ints(2, 0, 2, t=it), ints(1, t=at)])
            yield C("ReverseSequence", [some(t, 2, 5, 2), ints(3, 5, t=it)], seq_dim=1)
            yield C("GatherNd", [x, ints([[2, 1], [0, 3]], t=it)])
            yield C("ScatterNd", [ints([[2], [0]], t=it), some(t, 2, 3), ints(4, 3, t=it)])
        yield C("Gather", [x, ints(1, 2)])
        yield C("Pack", [[x, x, x]], axis=1)
        yield C("Unpack", [x], num=4, axis=1)
        yield C("Split", [ints(1), x], num_split=2)
        yield C("SplitV", [x, ints(1, 3), ints(1)], num_split=2)
        yield C("Where", [x]) if t is not object else C("Identity", [x])
        yield C("Select", [np.array([True, False, True]), x, some(t, 3, 4, start=5)])
        yield C("SelectV2", [np.array([[True], [False], [True]]), x, some(t, 1, 4, start=5)])
        for ti in np.uint8, np.int8, np.int32, np.int64:
            yield C("OneHot", [ints(0, 2, 9, t=ti), ints(3), some(t), some(t, start=1)])
        yield C("DynamicStitch", [[ints(0, 2), ints([1])], [some(t, 2, 3), some(t, 1, 3)]])
        yield C("ParallelDynamicStitch", [[ints(0, 2), ints([1])], [some(t, 2, 3), some(t, 1, 3)]])
        yield C("DynamicPartition", [x, ints(1, 0, 1)], num_partitions=2)
        yield C("SparseFillEmptyRows", [ints([[0, 1], [2, 0]], t=np.int64), some(t, 2), ints(4, 5, t=np.int64), some(t)])
        yield C("MatrixBandPart", [x, ints(1, t=np.int32), ints(0, t=np.int32)]) if t is not object else C("Identity", [x])
        yield C("RandomShuffle", [some(t, 7, 2)], seed=3, seed2=4)
        yield C("Identity", [x])
        for it in INDEX:
            yield C("SparseToDense", [ints([[0, 1], [2, 0]], t=it), ints(3, 4, t=it), some(t, 2), some(t, start=4)])
    for t in NUMBERS:
        for it in INDEX:
            for nt in INDEX:
                yield C("UnsortedSegmentSum", [some(t, 5, 2), ints(2, 0, 2, -1, 1, t=it), ints(3, t=nt)])
    for t in REALS:
        for it in INDEX:
            for st in INDEX:
                ids = [ints(0, 2, 1, t=it), ints(0, 0, 2, t=st)]
                for op in ("Sum", "Mean", "SqrtN") if np.dtype(t).kind in "fV" or t is BF16 else ("Sum",):
                    yield C("SparseSegment" + op, [some(t, 3, 2)] + ids, tol=2e-2 if t is BF16 else 2e-3 if t is np.float16 else None)
                    if op == "Sum" and np.dtype(t).kind != "f" and t is not BF16:
                        continue
                    yield C("SparseSegment%sGrad" % op, [some(t, 3, 2)] + ids + [ints(4)], tol=2e-2 if t is BF16 else 2e-3 if t is np.float16 else None)
    for t in np.float32, np.float64, np.float16, np.int32, np.int64, np.int8, np.uint8, np.int16, np.uint16, BF16:
        x = some(t, 2, 5, 5, 2)
        kw = dict(ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID")
        yield C("MaxPool", [x], **kw)
        y = x[:, :4, :4].reshape(2, 2, 2, 2, 2, 2).max(axis=(2, 4))
        yield C("MaxPoolGrad", [x, y.astype(t), some(t, 2, 2, 2, 2)], **kw)
    for t in np.float32, np.float64, np.float16, BF16:
        tol = dict(tol=2e-2 if t is BF16 else 2e-3 if t is np.float16 else 1e-5)
        yield C("AvgPool", [some(t, 2, 5, 5, 2)], ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME", **tol)
        yield C("AvgPoolGrad", [ints(2, 5, 5, 2), some(t, 2, 3, 3, 2)], ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME", **tol)
        if t is not np.float64:
            x = some(t, 1, 2, 2, 6) / t(8)
            yield C("LRN", [x], atol=1e-2 if t is not np.float32 else 1e-5)
            yield C("LRNGrad", [some(t, 1, 2, 2, 6) / t(8), x, x], atol=3e-2 if t is not np.float32 else 1e-5)
        for o in tf.int32, tf.int64:
            yield C("Multinomial", [some(t, 2, 5), ints(6)], seed=3, seed2=9, output_dtype=o)
    for it in INDEX:
        for op in "RandomUniform", "RandomStandardNormal", "TruncatedNormal":
            yield C(op, [ints(3, 2, t=it)], seed=3, seed2=9, dtype=tf.float32, tol=1e-5)
        for t in INDEX:
            yield C("RandomUniformInt", [ints(5, t=it), ints(3, t=t), ints(90, t=t)], seed=3, seed2=9)
        yield C("Cumsum", [some(np.float32, 3, 4), ints(1, t=it)])
        yield C("BroadcastArgs", [ints(3, 1, t=it), ints([4], t=it)])
        yield C("LinSpace", [np.float32(1), np.float32(4), ints(5, t=it)])
        yield C("MatrixBandPart", [some(np.float32, 4, 4), ints(1, t=it), ints(-1, t=it)])
        yield C("ConcatOffset", [ints(1, t=np.int32), [ints(2, 3, t=it), ints(2, 5, t=it)]])
    for it in np.int16, np.int32, np.int64:
        for kt in np.int16, np.int32, np.int64:
            yield C("TopKV2", [some(np.float32, 3, 6), ints(2, t=kt)], index_type=tf.as_dtype(it))
        yield C("StridedSlice", [some(np.float32, 5), ints([1], t=it), ints([4], t=it), ints([2], t=it)])
        yield C("UnsortedSegmentSum", [some(np.float32, 5), ints(2, 0, 2, 1, 1, t=it), ints(3)])
        yield C("GatherV2", [some(np.float32, 5), ints(2, 0, t=it), ints(0)])
    for t in np.complex64, np.complex128:
        yield C("Log1p", [some(t, 3, 3)], tol=1e-5)
    yield C("BatchMatMulV2", [some(np.int16, 2, 3, 4), some(np.int16, 2, 4, 2)])
    for o in tf.bool, tf.bfloat16, tf.complex64, tf.complex128, tf.uint16:
        yield C("DecodeRaw", [np.array([b"\x01\x00\x01\x01" * 8, b"\x00\x00\x01\x3f" * 8], object)], out_type=o)
        yield C("DecodeRaw", [np.array([b"\x01\x00\x01\x01" * 8], object)], out_type=o, little_endian=False)


def cases_quantised(rng, quick):
    """Numbers that are stored, copied and compared; what they stand for is nobody's business here."""
    for q, t in (tf.qint8, tf.int8), (tf.quint8, tf.uint8), (tf.qint16, tf.int16), (tf.quint16, tf.uint16), (tf.qint32, tf.int32):
        as_q = lambda x: np.array(x, t.as_numpy_dtype).view(q.as_numpy_dtype)
        x, y = as_q([[1, 2, 3], [4, 5, 255 & np.iinfo(t.as_numpy_dtype).max]]), as_q([1, 5, 3])
        for op in "Equal", "NotEqual":
            yield C(op, [x, y])
            yield C(op, [x, as_q([1, 2])])
            yield C(op, [x, as_q([1, 2])], incompatible_shape_error=False)
        yield C("Bitcast", [x], type=t)
        yield C("Bitcast", [np.arange(6, dtype=t.as_numpy_dtype)], type=q)
        yield C("Bitcast", [np.arange(4, dtype=np.int32)], type=q)
        yield C("Bitcast", [as_q(range(8)).reshape(2, 4)], type=tf.int32)
        for c in C("ConcatV2", [[x, x], ints(0)]), C("Pack", [[x, x]]), C("GatherV2", [x, ints(1, 0), ints(0)]), C("Fill", [ints([2]), as_q([7])[0].reshape(())]):
            yield c
        if q in (tf.qint8, tf.quint8, tf.qint32):
            yield C("Slice", [x, ints(0, 1), ints(2, 2)])
            yield C("StridedSlice", [x, ints(1, 0), ints(2, 3), ints(1, 2)])
            yield C("Pad", [x, ints([[1, 0], [0, 1]])])
            yield C("MirrorPad", [x, ints([[1, 0], [0, 1]])], mode="REFLECT")
            yield C("GatherNd", [x, ints([[1, 2]])])
            yield C("DynamicStitch", [[ints(0, 1)], [x]])


def bits(x):
    """Equal to the last bit, but for the sign of what is no number."""
    def check(want, got):
        w, g = (np.where(np.isnan(v[0].astype(np.float32)), 127, v[0].view(np.uint8)) for v in (want, got))
        at = np.flatnonzero(w != g)
        return None if not at.size else "%s: %s, TensorFlow's %s" % (x[at], g[at], w[at])
    return check


def cases_float8(rng, quick):
    """Numbers of 8 bits, from and to all others."""
    every = np.arange(256).astype(np.uint8)
    wide = np.concatenate([rng.normal(0, 10.0 ** rng.uniform(-6, 5, 400)), [0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 464.01, 480, 57344, 61439, 61440, 65535, 65536, 2.0 ** -9, 2.0 ** -10, 2.0 ** -16,
                                                                             2.0 ** -17, 3 * 2.0 ** -18, 1.0625, 1.1875, 1e-30, 1e30]])
    for t8 in dtypes.float8_e5m2, dtypes.float8_e4m3fn:
        x = every.view(t8.as_numpy_dtype)
        real = x[np.isfinite(x.astype(np.float32))]
        yield C("Identity", [x.reshape(16, 16)], check=bits(every.reshape(16, 16)))
        for t in REALS + [np.complex64, np.complex128, np.bool_]:
            n = np.dtype(t)
            fits = real if n.kind in "biu" else x
            if n.kind == "u":
                fits = fits[fits.astype(np.float32) >= 0]
            if n.kind in "iu":
                fits = fits[np.abs(fits.astype(np.float32)) <= np.iinfo(t).max]
            yield C("Cast", [fits], DstT=tf.as_dtype(t))
            with np.errstate(all="ignore"):
                back = (rng.randint(0, 100, 50) if n.kind in "iub" else wide).astype(t)
            yield C("Cast", [back], DstT=t8, check=bits(back))
        for other in dtypes.float8_e5m2, dtypes.float8_e4m3fn:
            yield C("Cast", [x], DstT=other, check=bits(x))
