"""Casting, shapes, moving and choosing elements."""
import atexit
import os
import tempfile

import numpy as np
import tensorflow as tf

from cases_math import BF16, CPLX, FLOATS, INTS, NUM, REAL, SHAPES, rand
from kernels import Case as C

BASIC = NUM + [np.bool_, object]
SOME = [np.float32, np.int64, np.bool_, object, np.complex128, np.float16, np.int8]


def i32(*v):
    return np.array(v[0] if len(v) == 1 else v, np.int32)


def pick(rng, quick, types=BASIC, n=4):
    """All types, or in quick mode a few."""
    return [types[i] for i in rng.permutation(len(types))[:n]] if quick else types


def cases_cast(rng, quick):
    types = NUM + [np.bool_]
    for a in types:
        for b in types:
            for shape in ((), (7,), (3, 600)) if not quick else ((5,),):
                yield C("Cast", [rand(rng, a, shape, 0 if np.issubdtype(b, np.unsignedinteger) else -5, 5)], DstT=tf.as_dtype(b))
    for b in (np.int32, np.int64, np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.uint64):
        for a in (np.float32, np.float64):
            yield C("Cast", [np.array([1e20, -1e20, np.nan, np.inf, 300.7, -300.7, 70000, 3e9, -3e9], a)], DstT=tf.as_dtype(b))
    for a, b in ((np.float32, tf.bfloat16), (np.float32, tf.float16), (np.float64, tf.float32), (np.float64, tf.float16), (np.float64, tf.bfloat16)):
        yield C("Cast", [rand(rng, a, (50,))], DstT=b, Truncate=True, tol=0)
    yield C("Cast", [rand(rng, object, (3,))], DstT=tf.string)
    yield C("Bitcast", [rand(rng, np.float32, (3, 2))], type=tf.int32)
    yield C("Bitcast", [rand(rng, np.float64, (3, 2))], type=tf.uint8)
    yield C("Bitcast", [rand(rng, np.uint8, (3, 4))], type=tf.float32)
    yield C("Bitcast", [rand(rng, np.uint8, (3, 2))], type=tf.float32)
    yield C("Bitcast", [rand(rng, np.uint8, ())], type=tf.float32)
    yield C("Bitcast", [rand(rng, np.complex64, (2,))], type=tf.float32)


def cases_shapes(rng, quick):
    for t in pick(rng, quick):
        for shape in SHAPES:
            x = rand(rng, t, shape)
            for o in (tf.int32, tf.int64):
                yield C("Shape", [x], out_type=o)
                yield C("Size", [x], out_type=o)
            yield C("Rank", [x])
            n = x.size
            for want in ([-1], [n], [1, n], [n, -1] if n else [0, 3], [2, -1], [-1, -1], [n + 1], [-2], [0, -1], [3, 0, 2], []):
                yield C("Reshape", [x, np.array(want, np.int32 if n % 2 else np.int64)])
            for d in range(-len(shape) - 2, len(shape) + 2):
                yield C("ExpandDims", [x, np.array(d, np.int32)])
    yield C("ShapeN", [[rand(rng, np.float32, s) for s in SHAPES]], out_type=tf.int64)
    yield C("Reshape", [rand(rng, np.float32, (4,)), np.array(4, np.int32)])
    yield C("Reshape", [rand(rng, np.float32, (4,)), np.array([[2, 2]], np.int32)])
    yield C("Reshape", [rand(rng, np.float32, (4,)), np.array([1 << 40, 1 << 40], np.int64)])
    yield C("ExpandDims", [rand(rng, np.float32, (4,)), np.array([0], np.int32)])
    for shape in ((1, 3, 1), (1,), (), (2, 1, 0), (3,)):
        for dims in ([], [0], [-1], [1], [0, 2], [5]):
            yield C("Squeeze", [rand(rng, np.int32, shape)], squeeze_dims=dims)
    for shape, want in (((2, 3), [2, None]), ((2, 3), None), ((2, 3), [3, 3]), ((2, 3), [6])):
        yield C("EnsureShape", [rand(rng, np.float32, shape)], shape=want)


def cases_fill(rng, quick):
    for t in BASIC:
        for dims in ([], [3], [2, 3], [0], [700]):
            yield C("Fill", [np.array(dims, np.int32), rand(rng, t, ())])
        for shape in SHAPES:
            yield C("ZerosLike", [rand(rng, t, shape)])
            if t is not object:
                yield C("OnesLike", [rand(rng, t, shape)])
    yield C("Fill", [np.array([-1], np.int32), rand(rng, np.float32, ())])
    yield C("Fill", [np.array([2], np.int64), rand(rng, np.float32, (2,))])
    yield C("Fill", [np.array([[2]], np.int64), rand(rng, np.float32, ())])
    yield C("Fill", [np.array([1 << 40, 1 << 40], np.int64), rand(rng, np.float32, ())])
    for t in (np.int32, np.int64, np.float32, np.float64):
        for a, b, d in ((0, 5, 1), (5, 0, -2), (0, 5, 2), (0, 0, 1), (3, 3, -1), (5, 0, 1), (0, 5, -1), (0, 5, 0), (-3, 4, 3), (7, 1, -3)):
            yield C("Range", [np.array(a, t), np.array(b, t), np.array(d, t)])
    for a, b, d in ((0, 1, 0.1), (0.5, -2, -0.3), (0, 1, 1 / 3.), (1e6, 1e6 + 3, 0.5)):
        for t in (np.float32, np.float64):
            yield C("Range", [np.array(a, t), np.array(b, t), np.array(d, t)])
    yield C("Range", [np.array(0, np.int64), np.array(2**63 - 1, np.int64), np.array(1, np.int64)])
    yield C("Range", [i32([0, 1]), i32(4), i32(1)])
    for t in (np.float32, np.float64):
        for a, b, n in ((0, 1, 5), (3, -2, 4), (1, 1, 3), (2, 5, 1), (0, 1, 0), (0, 1, -1), (0.1, 0.7, 100)):
            yield C("LinSpace", [np.array(a, t), np.array(b, t), np.array(n, np.int32)], atol=1e-6)


def cases_axis(rng, quick):
    for t in pick(rng, quick):
        for shape in ((), (3,), (2, 3), (2, 3, 4), (0,), (2, 0)):
            r = len(shape)
            for axis in range(-r - 2, r + 2):
                n = rng.randint(1, 4)
                yield C("Pack", [[rand(rng, t, shape) for _ in range(n)]], axis=axis)
            for axis in range(-r - 1, r + 1):
                ok = -r <= axis < r
                yield C("Unpack", [rand(rng, t, shape)], axis=axis, num=shape[axis] if ok else 1)
                for n in (2, 3):
                    xs = []
                    for _ in range(n):
                        s = list(shape)
                        if ok:
                            s[axis] = rng.randint(0, 4)
                        xs.append(rand(rng, t, s))
                    yield C("ConcatV2", [xs, np.array(axis, np.int32 if n == 2 else np.int64)])
                    yield C("Concat", [np.array(axis, np.int32), xs])
                for n in (1, 2, 3):
                    yield C("Split", [np.array(axis, np.int32), rand(rng, t, shape)], num_split=n)
                if ok:
                    for sizes in ([shape[axis]], [1, -1], [-1, 1, 1], [2, 1], [-1, -1], [1, -2], [9, -1]):
                        yield C("SplitV", [rand(rng, t, shape), np.array(sizes, np.int64), np.array(axis, np.int32)], num_split=len(sizes))
    yield C("Pack", [[rand(rng, np.float32, (2,)), rand(rng, np.float32, (3,))]])
    yield C("Unpack", [rand(rng, np.float32, (2,))], num=3)
    yield C("ConcatV2", [[rand(rng, np.float32, (2, 2)), rand(rng, np.float32, (2, 3))], np.array(0, np.int32)])
    yield C("ConcatV2", [[rand(rng, np.float32, (2, 2)), rand(rng, np.float32, (2,))], np.array(0, np.int32)])
    yield C("ConcatV2", [[rand(rng, np.float32, (2,)), rand(rng, np.float32, (2,))], np.array([0], np.int32)])
    yield C("ConcatOffset", [i32(1), [i32(2, 3), i32(2, 5), i32(2, 1)]])
    yield C("ConcatOffset", [i32(-1), [i32(2, 3), i32(2, 5), i32(2, 1)]])
    yield C("ConcatOffset", [i32(0), [i32(2, 3), i32(2, 5)]])
    yield C("ConcatOffset", [i32(2), [i32(2, 3), i32(2, 5)]])
    yield C("ConcatOffset", [i32(0), [i32(2, 3), i32([2])]])
    if not quick:
        yield C("ConcatV2", [[rand(rng, np.float32, (300, 500)) for _ in range(3)], np.array(1, np.int32)])


def cases_slice(rng, quick):
    for t in pick(rng, quick):
        for shape in ((5,), (3, 4), (2, 3, 4), (0, 3), ()):
            for _ in range(4):
                b = [rng.randint(0, d + 1) for d in shape]
                n = [rng.choice([-1, rng.randint(0, d - x + 1)]) for x, d in zip(b, shape)]
                yield C("Slice", [rand(rng, t, shape), np.array(b, np.int32), np.array(n, np.int32)])
    x = rand(rng, np.float32, (3, 4))
    for b, n in (([0], [1]), ([4, 0], [0, 0]), ([1, 1], [3, 1]), ([-1, 0], [1, 1]), ([0, 0], [-2, 1])):
        yield C("Slice", [x, np.array(b, np.int64), np.array(n, np.int64)])


def random_spec(rng, shape):
    """begin, end, strides and masks, with new axes and an ellipsis."""
    entries, masks = [], dict(begin_mask=0, end_mask=0, ellipsis_mask=0, new_axis_mask=0, shrink_axis_mask=0)
    dims = rng.randint(0, len(shape) + 1)
    ell = rng.randint(0, dims + 1) if rng.rand() < 0.3 else -1
    d = 0
    i = 0
    while d < dims or i == ell:
        if i == ell:
            masks["ellipsis_mask"] |= 1 << i
            entries.append((0, 0, 1))
            ell = -2
        elif rng.rand() < 0.15:
            masks["new_axis_mask"] |= 1 << i
            entries.append((0, 0, 1))
        else:
            n = shape[d]
            if rng.rand() < 0.2 and n:
                masks["shrink_axis_mask"] |= 1 << i
                b = rng.randint(-n, n)
                entries.append((b, b + 1, 1))
            else:
                s = rng.choice([1, 1, 2, 3, -1, -2])
                entries.append((rng.randint(-n - 2, n + 3), rng.randint(-n - 2, n + 3), s))
                for m in ("begin_mask", "end_mask"):
                    if rng.rand() < 0.3:
                        masks[m] |= 1 << i
            d += 1
        i += 1
    return [np.array([e[k] for e in entries], np.int32) for k in range(3)], masks


def cases_strided(rng, quick):
    for t in pick(rng, quick):
        for shape in ((7,), (3, 4), (2, 3, 4), (4, 3, 2, 2), (0, 3), ()):
            for _ in range(8 if quick else 12):
                (b, e, s), masks = random_spec(rng, shape)
                yield C("StridedSlice", [rand(rng, t, shape), b, e, s], **masks)
    for t in (np.float32, np.int64, np.bool_):
        for shape in ((7,), (3, 4), (2, 3, 4)):
            for _ in range(8):
                (b, e, s), masks = random_spec(rng, shape)
                try:
                    y = tf.raw_ops.StridedSlice(input=tf.zeros(shape), begin=b, end=e, strides=s, **masks)
                except tf.errors.InvalidArgumentError:
                    continue
                dy = rand(rng, t, y.shape)
                yield C("StridedSliceGrad", [np.array(shape, np.int32), b, e, s, dy], **masks)
                yield C("TensorStridedSliceUpdate", [rand(rng, t, shape), b, e, s, dy], **masks)
    x = rand(rng, np.float32, (3, 4))
    for b, e, s, m in (([0, 0, 0], [1, 1, 1], [1, 1, 1], {}), ([0], [1], [0], {}), ([5], [6], [1], dict(shrink_axis_mask=1)), ([0, 0], [1, 1], [1, 1], dict(ellipsis_mask=3)),
                       ([0], [1, 2], [1], {}), ([0], [3], [-1], dict(shrink_axis_mask=1)), ([2], [2], [1], {}), ([2 ** 31 - 1], [-2 ** 31], [-1], {})):
        yield C("StridedSlice", [x, i32(b), i32(e), i32(s)], **m)
    yield C("StridedSliceGrad", [i32(3, 4), i32([0]), i32([2]), i32([1]), rand(rng, np.float32, (3, 4))])


def cases_move(rng, quick):
    for t in pick(rng, quick):
        for shape in ((), (5,), (3, 4), (2, 3, 4), (2, 1, 3, 2), (2, 3, 2, 2, 3), (0, 3), (20, 30)):
            r = len(shape)
            x = rand(rng, t, shape)
            for _ in range(3):
                p = rng.permutation(r)
                yield C("Transpose", [x, p.astype(np.int32)])
                yield C("ConjugateTranspose", [x, p.astype(np.int64)])
                ax = [a for a in range(r) if rng.rand() < 0.5]
                yield C("ReverseV2", [x, np.array([a - r if rng.rand() < 0.3 else a for a in ax], np.int32)])
                times = np.array([rng.randint(0, 4) if rng.rand() < 0.7 else 1 for _ in range(r)], np.int32)
                yield C("Tile", [x, times], like=C("Tile", [x.astype(np.int32), times]) if x.dtype == np.uint16 else None)  # as in cases_types.py
                bs = [1 if rng.rand() < 0.5 else d for d in shape]
                yield C("BroadcastTo", [rand(rng, t, bs), np.array(([2] if rng.rand() < 0.3 else []) + list(shape), np.int32)])
                pads = rng.randint(0, 3, (r, 2)).astype(np.int32)
                yield C("Pad", [x, pads])
                if t is not object or True:
                    yield C("PadV2", [x, pads.astype(np.int64), rand(rng, t, ())])
                if shape and 0 not in shape:
                    lim = np.array(shape)[:, None]
                    p = (rng.rand(r, 2) * (lim + 0.99)).astype(np.int32)
                    yield C("MirrorPad", [x, p], mode="SYMMETRIC")
                    yield C("MirrorPad", [x, np.minimum(p, lim - 1).astype(np.int64)], mode="REFLECT")
    x = rand(rng, np.float32, (3, 4))
    yield C("Reverse", [x, np.array([True, False])])
    for p in ([0], [0, 0], [0, 2], [1, 0, 2]):
        yield C("Transpose", [x, i32(p)])
    for a in ([2], [0, 0], [-3]):
        yield C("ReverseV2", [x, i32(a)])
    for m in ([1], [-1, 2], [2, 3, 4]):
        yield C("Tile", [x, i32(m)])
    for s in ([4], [3, 5], [2, 3, 4], [3, -1], [0, 4]):
        yield C("BroadcastTo", [x, i32(s)])
    for p in ([[1, 1]], [[-1, 0], [0, 0]], [[0, 0, 0], [0, 0, 0]]):
        yield C("Pad", [x, i32(p)])
    yield C("MirrorPad", [x, i32([[3, 0], [0, 0]])], mode="REFLECT")
    yield C("MirrorPad", [x, i32([[4, 0], [0, 0]])], mode="SYMMETRIC")
    for a, b in (((2, 3), (2, 3)), ((2, 3), (3,)), ((1, 3), (2, 1)), ((), (2,)), ((2, 1), (1,)), ((1, 1), (1, 1)), ((0, 3), (1,)), ((2,), (3,)), ((5, 1, 3), (4, 1)), ((1,), ())):
        a, b = np.array(a, np.int32), np.array(b, np.int32)
        yield C("BroadcastArgs", [a, b])
        yield C("BroadcastGradientArgs", [a, b])
        yield C("BroadcastGradientArgs", [b.astype(np.int64), a.astype(np.int64)])
    for shape, sd, bd, lens in (((3, 4), 1, 0, [2, 0, 4]), ((4, 3), 0, 1, [1, 4, 2]), ((2, 3, 4, 2), 2, 0, [3, 1]), ((3, 4), 1, 0, [5, 0, 0]), ((3, 4), 1, 1, [1, 1, 1]), ((3, 4), 1, 0, [1, 1])):
        yield C("ReverseSequence", [rand(rng, np.int32, shape), np.array(lens, np.int64)], seq_dim=sd, batch_dim=bd)


def cases_diag(rng, quick):
    for t in (np.float32, np.float64, np.int32, np.complex64):
        for shape in ((3,), (2, 3), (0,), ()):
            yield C("Diag", [rand(rng, t, shape)])
            yield C("MatrixDiag", [rand(rng, t, shape)])
        for shape in ((3, 3), (2, 3, 2, 3), (2, 3), (3,), (0, 0)):
            yield C("DiagPart", [rand(rng, t, shape)])
            yield C("MatrixDiagPart", [rand(rng, t, shape)])
        for shape in ((3, 4), (4, 3), (2, 3, 3), (0, 2)):
            d = shape[:-2] + (min(shape[-2:]),)
            yield C("MatrixSetDiag", [rand(rng, t, shape), rand(rng, t, d)])
            for lo, up in ((0, 0), (-1, 0), (0, -1), (1, 2), (-1, -1), (2, 0), (9, 0), (0, 9)):
                yield C("MatrixBandPart", [rand(rng, t, shape), np.array(lo, np.int64), np.array(up, np.int64)])
    yield C("MatrixSetDiag", [rand(rng, np.float32, (3, 3)), rand(rng, np.float32, (2,))])
    for t in pick(rng, quick):
        for shape in ((), (5,), (2, 3), (0,)):
            for axis in range(-1, len(shape) + 2):
                yield C("OneHot", [rand(rng, np.int32, shape, -1, 5), i32(4), rand(rng, t, ()), rand(rng, t, ())], axis=axis)
    yield C("OneHot", [rand(rng, np.uint8, (3,), 0, 5), i32(0), np.float32(1), np.float32(0)])
    yield C("OneHot", [rand(rng, np.int64, (3,), 0, 5), i32(-1), np.float32(1), np.float32(0)])
    for p in ([2, 0, 1], [0], [], [1, 1], [0, 3], [-1, 0]):
        yield C("InvertPermutation", [np.array(p, np.int32)])
        yield C("InvertPermutation", [np.array(p, np.int64)])


def cases_gather(rng, quick):
    for t in pick(rng, quick):
        for shape in ((5,), (4, 3), (2, 3, 4)):
            for ish in ((), (3,), (2, 2), (0,)):
                for axis in range(-len(shape), len(shape)):
                    it = rng.choice([np.int32, np.int64])
                    x = rand(rng, t, shape)
                    yield C("GatherV2", [x, rand(rng, it, ish, 0, shape[axis] - 1), np.array(axis, np.int32)])
                yield C("Gather", [rand(rng, t, shape), rand(rng, np.int32, ish, 0, shape[0] - 1)])
        for ps, ish, axis, b in (((2, 3, 4), (2, 2), 1, 1), ((2, 3, 4), (2, 3, 2), 2, 2), ((2, 3, 4), (2,), 2, 1), ((2, 3, 4), (2, 5), -1, -1), ((2, 3), (2, 2), 0, 1), ((2, 3), (3, 2), 1, 1)):
            yield C("GatherV2", [rand(rng, t, ps), rand(rng, np.int32, ish, 0, ps[axis] - 1), np.array(axis, np.int32)], batch_dims=b)
        for shape in ((5,), (4, 3), (2, 3, 4)):
            for d in range(0, len(shape) + 2):
                for ish in ((d,), (3, d), (2, 2, d), (0, d)):
                    idx = np.stack([rand(rng, np.int32, ish[:-1], 0, (shape + (1,))[i] - 1) for i in range(d)], -1) if d else np.zeros(ish, np.int32)
                    yield C("GatherNd", [rand(rng, t, shape), idx.astype(np.int32).reshape(ish)])
                    if 1 <= d <= len(shape) and len(ish) > 1 and t not in (np.bool_, object):
                        u = rand(rng, t, ish[:-1] + shape[d:])
                        yield C("ScatterNd", [idx.reshape(ish).astype(np.int32), u, np.array(shape, np.int32)], atol=0.1 if t in (BF16, np.float16) else 1e-5)
                        yield C("TensorScatterAdd", [rand(rng, t, shape), idx.reshape(ish).astype(np.int32), u], atol=0.1 if t in (BF16, np.float16) else 1e-5)
                        yield C("TensorScatterSub", [rand(rng, t, shape), idx.reshape(ish).astype(np.int32), u], atol=0.1 if t in (BF16, np.float16) else 1e-5)
                        if t in REAL:
                            yield C("TensorScatterMax", [rand(rng, t, shape), idx.reshape(ish).astype(np.int32), u])
                            yield C("TensorScatterMin", [rand(rng, t, shape), idx.reshape(ish).astype(np.int32), u])
        x, idx = rand(rng, t, (5, 2)), i32([[3], [1]])
        yield C("TensorScatterUpdate", [x, idx, rand(rng, t, (2, 2))])
        yield C("TensorScatterUpdate", [x, idx, rand(rng, t, (2, 3))])
        n = rng.randint(1, 4)
        sizes = [rng.randint(0, 4) for _ in range(n)]
        perm, ix = rng.permutation(sum(sizes)), []
        for s in sizes:
            ix.append(perm[:s].astype(np.int32))
            perm = perm[s:]
        for tail in ((), (2,), (2, 3)):
            yield C("DynamicStitch", [ix, [rand(rng, t, (s,) + tail) for s in sizes]])
            yield C("ParallelDynamicStitch", [ix, [rand(rng, t, (s,) + tail) for s in sizes]])
            yield C("DynamicPartition", [rand(rng, t, (2, 3) + tail), rand(rng, np.int32, (2, 3), 0, 2)], num_partitions=3)
            yield C("DynamicPartition", [rand(rng, t, (4,) + tail), rand(rng, np.int32, (4,), 0, 1)], num_partitions=2)
    x = rand(rng, np.float32, (3, 4))
    for bad in (3, -1):
        yield C("GatherV2", [x, i32([bad]), i32(0)])
        yield C("GatherNd", [x, i32([[bad, 0]])])
        yield C("ScatterNd", [i32([[bad]]), np.float32([1]), i32([3])])
        yield C("DynamicPartition", [np.float32([1]), i32([bad])], num_partitions=2)
    for axis in (2, -3):
        yield C("GatherV2", [x, i32([0]), i32(axis)])
    yield C("GatherV2", [np.float32(1), i32([0]), i32(0)])
    yield C("GatherNd", [np.zeros((0, 2), np.float32), i32([[0]])])
    yield C("ScatterNd", [i32([[0]]), np.float32([1]), i32([-1])])
    yield C("ScatterNd", [i32([[0]]), np.float32([[1]]), i32([3])])
    yield C("DynamicStitch", [[i32([0]), i32([-1])], [np.float32([1]), np.float32([2])]])
    yield C("DynamicStitch", [[i32([0, 1])], [np.float32([1])]])
    yield C("DynamicStitch", [[i32([0]), i32([1])], [np.float32([1]), np.float32([[2]])]])


def cases_select(rng, quick):
    for t in pick(rng, quick):
        for shape in ((), (5,), (3, 4), (2, 3, 2), (0,)):
            yield C("Select", [rand(rng, np.bool_, shape), rand(rng, t, shape), rand(rng, t, shape)])
            yield C("Select", [rand(rng, np.bool_, ()), rand(rng, t, shape), rand(rng, t, shape)])
            if shape:
                yield C("Select", [rand(rng, np.bool_, shape[:1]), rand(rng, t, shape), rand(rng, t, shape)])
        for a, b, c in (((), (), ()), ((3,), (), ()), ((), (3,), ()), ((3, 1), (4,), ()), ((4,), (3, 1), (3, 4)), ((2, 1, 4), (3, 1), (1,)), ((3, 4), (3, 4), (3, 4)), ((0,), (1,), ()),
                        ((), (1, 3), (2, 1)), ((3,), (4,), ()), ((1,), (2, 3), (3,))):
            yield C("SelectV2", [rand(rng, np.bool_, a), rand(rng, t, b), rand(rng, t, c)])
        for a, b, c in (((7, 33), (7, 33), ()), ((7, 33), (), (7, 33)), ((7, 33), (7, 33), (7, 33)), ((7, 33), (1,), (1, 1))):  # a mask with one value for the others
            yield C("SelectV2", [rand(rng, np.bool_, a), rand(rng, t, b), rand(rng, t, c)])
        if t is not object:
            for shape in ((), (5,), (3, 4), (2, 3, 2), (0, 2)):
                yield C("Where", [rand(rng, t, shape, 0, 1) if t in INTS else np.round(rand(rng, t, shape, 0, 1)).astype(t)])
    yield C("Select", [rand(rng, np.bool_, (2,)), rand(rng, np.float32, (3,)), rand(rng, np.float32, (3,))])
    yield C("Select", [rand(rng, np.bool_, (3,)), rand(rng, np.float32, (3,)), rand(rng, np.float32, (2,))])
    yield C("Select", [rand(rng, np.bool_, (3, 1)), rand(rng, np.float32, (3, 4)), rand(rng, np.float32, (3, 4))])
    for t in (np.float32, np.float64, np.int32, np.int64, np.uint8, np.float16):
        for shape in ((), (5,), (300,)):
            yield C("ClipByValue", [rand(rng, t, shape, -9, 9), np.array(1, t), np.array(4, t)])
            yield C("ClipByValue", [rand(rng, t, shape, -9, 9), np.array(1, t), rand(rng, t, shape, 2, 5)])
    for t in REAL + [np.bool_, object]:
        for n in (0, 1, 6, 40):
            x = rand(rng, t, (n,), 0, 6)
            if t in FLOATS:
                x = np.round(x).astype(t)
            for o in (tf.int32, tf.int64):
                yield C("Unique", [x], out_idx=o)
                yield C("UniqueWithCounts", [x], out_idx=o)
            yield C("UniqueV2", [x, np.array([], np.int64)])
            if t is not np.bool_:
                y = rand(rng, t, (3,), 0, 6)
                yield C("ListDiff", [x, np.round(y).astype(t) if t in FLOATS else y])
    for shape, axis in (((4, 2), 0), ((2, 4), 1), ((2, 3, 2), 1), ((2, 3, 2), -1), ((0, 2), 0)):
        x = rand(rng, np.int32, shape, 0, 1)
        yield C("UniqueV2", [x, np.array([axis], np.int32)])
        yield C("UniqueWithCountsV2", [x, np.array([axis], np.int64)], out_idx=tf.int64)
    yield C("Unique", [rand(rng, np.float32, (2, 2))])
    yield C("Unique", [np.array([0.0, -0.0, np.nan, np.nan, 1], np.float32)])
    yield C("UniqueV2", [rand(rng, np.int32, (2, 2)), np.array([2], np.int32)])


def cases_segment(rng, quick):
    for op, types in (("Sum", NUM), ("Prod", NUM), ("Max", REAL), ("Min", REAL)):
        for t in pick(rng, quick, types, 6):
            atol = 0.3 if t is BF16 else 0.05 if t is np.float16 else 1e-5
            tol = 3e-2 if t is BF16 else 5e-3 if t is np.float16 else 1e-5
            for shape, ish in (((6,), (6,)), ((6, 2), (6,)), ((3, 2, 4), (3, 2)), ((0, 2), (0,)), ((3,), ()), ((600, 3), (600,)) if op != "Prod" else ((3,), (3,))):
                yield C("UnsortedSegment" + op, [rand(rng, t, shape, -2, 2), rand(rng, np.int32, ish, -1, 3), i32(4)], atol=atol * (3 if 600 in shape else 1), tol=tol)
            for shape in ((6,), (6, 2), (1, 3), (0, 2), (5, 0)):
                ids = np.sort(rng.randint(0, 4, shape[0])).astype(rng.choice([np.int32, np.int64]))
                if t in FLOATS or t in CPLX or op != "Mean":
                    yield C("Segment" + op, [rand(rng, t, shape, -2, 2), ids], atol=atol, tol=tol)
                if op == "Sum":
                    yield C("SegmentMean", [rand(rng, t, shape, 0, 2), ids], atol=atol, tol=tol)
    for t in (np.float32, np.float64, np.float16, BF16):
        atol = 0.3 if t is BF16 else 0.05 if t is np.float16 else 1e-5
        for shape in ((6,), (6, 2), (1, 3), (4, 20)):
            n = rng.randint(1, 8)
            ids = np.sort(rng.randint(0, 4, n)).astype(np.int32)
            idx = rng.randint(0, shape[0], n).astype(rng.choice([np.int32, np.int64]))
            for op in ("Sum", "Mean", "SqrtN"):
                yield C("SparseSegment" + op, [rand(rng, t, shape), idx, ids], atol=atol)
                yield C("SparseSegment%sWithNumSegments" % op, [rand(rng, t, shape), idx, ids, i32(5)], atol=atol)
                yield C("SparseSegment%sGrad" % op, [rand(rng, t, (5,) + shape[1:]), idx, ids, i32(shape[0])], atol=atol)
                yield C("SparseSegment%sGradV2" % op, [rand(rng, t, (5,) + shape[1:]), idx, ids, i32(shape[0])], atol=atol)
    x = rand(rng, np.float32, (3, 2))
    for ids in ([0, 1], [0, 2, 1], [-1, 0, 0], [[0, 0, 0]]):
        yield C("SegmentSum", [x, i32(ids)])
        yield C("SparseSegmentSum", [x, i32([0, 1, 2]), i32(ids)])
    yield C("SparseSegmentSum", [x, i32([0, 3]), i32([0, 0])])
    yield C("SparseSegmentSumWithNumSegments", [x, i32([0, 1]), i32([0, 5]), i32(3)])
    for t in pick(rng, quick, NUM, 4):  # numbered as Unique does it: summed where the rows lie
        for ids in ([0, 1, 2, 3, 4, 5], [0, 1, 0, 2, 1, 3], [0, 0, 0, 0, 0, 0], [[0, 1, 2], [1, 3, 0]]):
            for inner in ((), (3,), (2, 70)):
                yield C("UnsortedSegmentSum", [rand(rng, t, np.shape(ids) + inner, -2, 2), i32(ids), i32(np.max(ids) + 1)], atol=0.05, tol=1e-2)
    yield C("UnsortedSegmentSum", [x, i32([0, 1, 4]), i32(4)])
    yield C("UnsortedSegmentSum", [x, i32([0, 1]), i32(4)])
    yield C("UnsortedSegmentSum", [x, i32([0, 1, 2]), i32(-1)])
    yield C("UnsortedSegmentSum", [x, i32([0, 1, 2]), i32([4])])
    for op in ("Sum", "Mean", "SqrtN"):
        for grad in ("Grad", "GradV2"):
            for ids in ([0, 5], [0, 2], [-1, 1], [0, -1], [0]):
                yield C("SparseSegment" + op + grad, [x, i32([0, 1]), i32(ids), i32(3)])
            yield C("SparseSegment" + op + grad, [x, i32([0, 3]), i32([0, 1]), i32(3)])
            yield C("SparseSegment" + op + grad, [x, i32([-1, 0]), i32([0, 1]), i32(3)])
            # TensorFlow's first kind leaves memory as it found it when there is nothing to add up
            yield C("SparseSegment" + op + grad, [x, i32([]), i32([]), i32(3)], check=None if grad == "GradV2" else lambda w, g: None if w[0].shape == g[0].shape and not g[0].any() else "not zeros")
            yield C("SparseSegment" + op + grad, [x, i32([1]), i32([0]), i32(0)])


def cases_immutable_const(rng, quick):
    path = os.path.join(tempfile.gettempdir(), "trainera-immutable-%d" % os.getpid())
    x = rng.bytes(4096)
    with open(path, "wb") as f:
        f.write(x)
    atexit.register(os.unlink, path)
    for t in (tf.float32, tf.int64, tf.uint8, tf.half, tf.complex64, tf.float64, tf.complex128, tf.bfloat16, tf.int16, tf.uint64, tf.qint8):
        for shape in ((3, 4), (), (7,), (0, 3), (4096 // t.size,)):
            yield C("ImmutableConst", [], dtype=t, shape=shape, memory_region_name=path, check=lambda w, g: None if w[0].tobytes() == g[0].tobytes() and w[0].shape == g[0].shape else "other bytes")
        yield C("ImmutableConst", [], dtype=t, shape=(4097,), memory_region_name=path)
    yield C("ImmutableConst", [], dtype=tf.float32, shape=(1,), memory_region_name=path + "-none")
    yield C("ImmutableConst", [], dtype=tf.string, shape=(1,), memory_region_name=path)
    yield C("ImmutableConst", [], dtype=tf.variant, shape=(1,), memory_region_name=path)
