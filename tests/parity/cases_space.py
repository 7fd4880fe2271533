"""Diagonals, space to batch and depth, patches, rolls, bins, buckets, order."""
import numpy as np
import tensorflow as tf

from cases_math import BF16, rand
from kernels import Case as C

ANY = [np.float32, np.int64, np.bool_, np.complex64, np.float16]
ALIGNS = ["LEFT_RIGHT", "RIGHT_LEFT", "LEFT_LEFT", "RIGHT_RIGHT"]


def i32(*v):
    return np.array(v[0] if len(v) == 1 else v, np.int32)


def i64(*v):
    return i32(*v).astype(np.int64)


def cases_diagonals(rng, quick):
    for t in ANY[:2] if quick else ANY:
        for shape in ((3, 4), (4, 3), (2, 3, 3), (1, 1), (0, 3), (2, 2, 5, 2)):
            x, pad = rand(rng, t, shape), rand(rng, t, ())
            for k in (0, 1, -1, 2, -3, [0, 0], [-1, 1], [0, 2], [-2, -1], [1, 0], [7, 8], [], [1, 2, 3]):
                yield C("MatrixDiagPartV2", [x, i32(k), pad])
                for a in ALIGNS:
                    yield C("MatrixDiagPartV3", [x, i32(k), pad], align=a)
                lo, hi = (k, k) if isinstance(k, int) else (k[0], k[-1]) if k else (0, 0)
                m, n = shape[-2:]
                longest = min(m + min(hi, 0), n - max(lo, 0))
                dshape = shape[:-2] + (() if lo == hi else (hi - lo + 1,)) + (max(longest, 0),)
                if min(dshape, default=0) >= 0:
                    d = rand(rng, t, dshape)
                    yield C("MatrixSetDiagV2", [x, d, i32(k)])
                    for a in ALIGNS:
                        yield C("MatrixSetDiagV3", [x, d, i32(k)], align=a)
        for shape, k in (((3,), 0), ((3,), 1), ((3,), -2), ((2, 3), 0), ((2, 3), [0, 1]), ((2, 3), [-1, 0]), ((3, 2), [-1, 1]), ((2, 3, 2), [-1, 1]), ((2, 3), [0, 2]), ((), 0)):
            d, pad = rand(rng, t, shape), rand(rng, t, ())
            for rows, cols in ((-1, -1), (3, -1), (4, 4), (-1, 5), (3, 4), (9, 9), (2, 2)):
                yield C("MatrixDiagV2", [d, i32(k), i32(rows), i32(cols), pad])
                for a in ALIGNS:
                    yield C("MatrixDiagV3", [d, i32(k), i32(rows), i32(cols), pad], align=a)


def cases_blocks(rng, quick):
    for t in (np.float32, np.int64, np.float16, np.complex64):
        for shape, block, pads in (((2, 4, 6, 3), [2, 2], [[0, 0], [0, 0]]), ((1, 3, 5, 2), [2, 3], [[1, 0], [0, 1]]), ((1, 5), [5], [[0, 0]]), ((3, 4, 2), [3], [[2, 3]]), ((2, 2, 2, 2, 2), [2, 1, 2], [[0, 0], [1, 1], [2, 0]]),
                                   ((2, 4), [], np.zeros((0, 2))), ((0, 4), [2], [[0, 0]]), ((1, 5), [2], [[0, 0]]), ((1, 5), [0], [[0, 0]]), ((1, 5), [2], [[-1, 0]]), ((1, 5), [2, 2], [[0, 0], [0, 0]]), ((1, 4), [2], [[0, 0], [0, 0]]), ((1, 1), [4], [[5, 6]])):
            yield C("SpaceToBatchND", [rand(rng, t, shape), i32(block), i32(pads)])
            yield C("SpaceToBatchND", [rand(rng, t, shape), i64(block), i64(pads)])
        for shape, block, crops in (((4, 2, 3, 2), [2, 2], [[0, 0], [0, 0]]), ((8, 2, 3, 2), [2, 2], [[1, 0], [2, 1]]), ((6, 3), [3], [[2, 2]]), ((6, 3, 2), [2], [[0, 6]]), ((6, 3, 2), [2], [[3, 6]]), ((5, 3), [2], [[0, 0]]), ((4, 2, 2, 2), [1, 2, 2], [[0, 1], [0, 0], [1, 1]])):
            yield C("BatchToSpaceND", [rand(rng, t, shape), i32(block), i32(crops)])
        for size in (2, 3):
            yield C("SpaceToBatch", [rand(rng, t, (2, 4, 6, 3)), i32([[0, 2], [0, 0]])], block_size=size)
            yield C("BatchToSpace", [rand(rng, t, (18, 2, 2, 3)), i32([[0, 1], [0, 0]])], block_size=size)
            for shape in ((2, 6, 12, 3), (1, 4, 4, 1), (1, 3, 3, 2), (0, 6, 6, 2), (6, 6)):
                yield C("SpaceToDepth", [rand(rng, t, shape)], block_size=size)
            for shape in ((2, 2, 3, 36), (1, 1, 1, 4), (1, 3, 3, 9), (1, 2, 2, 5)):
                yield C("DepthToSpace", [rand(rng, t, shape)], block_size=size)
    for t in (np.float32, np.int32, np.float64):
        for shape in ((2, 5, 7, 3), (1, 4, 4, 1), (1, 2, 2, 2)):
            for ks in ((1, 1), (2, 3), (3, 3), (4, 1)):
                for st in ((1, 1), (2, 3)):
                    for ra in ((1, 1), (2, 2)):
                        for pad in ("SAME", "VALID"):
                            yield C("ExtractImagePatches", [rand(rng, t, shape)], ksizes=[1, *ks, 1], strides=[1, *st, 1], rates=[1, *ra, 1], padding=pad)


def cases_roll(rng, quick):
    for t in ANY + [object]:
        for shape in ((5,), (3, 4), (2, 3, 4), (0, 3)):
            x = rand(rng, t, shape)
            for s, a in ((1, 0), (-2, 0), (7, -1), (0, 0), ([1, 2], [0, -1]), ([1, 2], [0, 0]), ([1], [0]), ([1, 2], [0]), (1, 5), (1, -5)):
                yield C("Roll", [x, i32(s), i64(a)])
    yield C("Roll", [np.float32(3), i32(1), i32(0)])
    yield C("Roll", [rand(rng, np.float32, (3,)), i32([[1]]), i32([[0]])])
    for t in (np.float32, np.float64, np.int32, np.complex64):
        for mode in ("REFLECT", "SYMMETRIC"):
            for shape, pads in (((7,), [[1, 2]]), ((5, 8), [[1, 1], [2, 0]]), ((5, 8), [[0, 0], [0, 0]]), ((6, 3, 7), [[2, 1], [0, 0], [2, 2]]), ((4,), [[2, 1]]), ((4,), [[3, 1]]), ((4,), [[-1, 1]]), ((4,), [[1, 1], [1, 1]])):
                yield C("MirrorPadGrad", [rand(rng, t, shape), i32(pads)], mode=mode, tol=1e-5, atol=1e-5)


def cases_bins(rng, quick):
    for t in (np.float32, np.float64, np.int32, np.int64):
        for shape in ((9,), (2, 5), (), (0,), (2, 0)):
            x = rng.randint(0, 6, shape).astype(np.int32)
            for size in (0, 3, 6, 9):
                for w in (rand(rng, t, shape, 0, 5), rand(rng, t, (0,))):
                    yield C("Bincount", [x, i32(size), w], tol=1e-5)
                    for it in (np.int32, np.int64) if shape != () else ():
                        for b in (False, True):
                            yield C("DenseBincount", [x.astype(it), np.array(size, it), w], binary_output=b, tol=1e-5)
        w = rand(rng, t, (4,), 0, 5)
        for b in (False, True):
            yield C("SparseBincount", [i64([[0, 1], [0, 3], [2, 0], [2, 2]]), i64(1, 1, 0, 4), i64(3, 4), i64(5), w], binary_output=b, tol=1e-5)
            yield C("SparseBincount", [i64([[0], [1], [2], [5]]), i64(1, 1, 0, 4), i64([6]), i64(5), w], binary_output=b, tol=1e-5)
        v = rand(rng, t, (50,), -5, 5)
        for r in ([-3, 3], [0, 10], [2, 1], [1, 1]):
            for n in (1, 5, 0, -1):
                for o in (tf.int32, tf.int64):
                    yield C("HistogramFixedWidth", [v, np.array(r, t), i32(n)], dtype=o)
        for b in ([], [0.0], [-2.0, 0.0, 1.0, 3.5], [1.0, 1.0], [3.0, 1.0]):
            yield C("Bucketize", [np.concatenate([v, np.array([0, 1, -2], t)])], boundaries=b)
            yield C("Bucketize", [v.reshape(2, 25)], boundaries=b)
    yield C("Bincount", [i32(-1, 2), i32(3), np.zeros(0, np.float32)])
    yield C("Bincount", [i32(1, 2), i32(-3), np.zeros(0, np.float32)])
    yield C("Bincount", [i32(1, 2), i32(3), np.zeros(3, np.float32)])
    yield C("DenseBincount", [i32(1, -2), i32(3), np.zeros(0, np.float32)])
    yield C("Bucketize", [np.array([np.nan, np.inf, -np.inf], np.float32)], boundaries=[0.0, 1.0])


def cases_order(rng, quick):
    for t in (np.float32, np.float64, np.int32, np.int64, np.uint8, np.float16, BF16):
        for shape in ((7,), (3, 5), (2, 3, 4), (2, 1)):
            x = rand(rng, t, shape)
            for n in (0, 1, 3, 4, 9, -1):
                for r in (False, True):
                    yield C("NthElement", [x, i32(n)], reverse=r)
        if t is not BF16:
            s, v = np.sort(rand(rng, t, (3, 6)), 1), rand(rng, t, (3, 4))
            v[:, 0] = s[:, 2]
            for o in (tf.int32, tf.int64):
                yield C("LowerBound", [s, v], out_type=o)
                yield C("UpperBound", [s, v], out_type=o)
            yield C("LowerBound", [s, v[:2]], out_type=tf.int32)
            yield C("LowerBound", [s[:, :0], v], out_type=tf.int32)
        yield C("Cross", [rand(rng, t, (3,), 0, 4), rand(rng, t, (3,), 0, 4)], atol=1e-1 if t in (BF16, np.float16) else 1e-5)
        yield C("Cross", [rand(rng, t, (2, 4, 3), 0, 4), rand(rng, t, (2, 4, 3), 0, 4)], atol=1e-1 if t in (BF16, np.float16) else 1e-5)
    yield C("Cross", [rand(rng, np.float32, (2,)), rand(rng, np.float32, (2,))])
    yield C("Cross", [rand(rng, np.float32, (3,)), rand(rng, np.float32, (1, 3))])
    yield C("Cross", [np.float32(1), np.float32(1)])
    for it in (np.int32, np.int64):
        for x, d in (([2, 5, 7], [3, 3]), (22, [7, 6]), (1621, [6, 7, 8, 9]), ([], [3]), ([9], [3, 3]), ([1], [0, 3]), ([[1]], [3]), ([1], 3)):
            yield C("UnravelIndex", [np.array(x, it), np.array(d, it)])
    for t in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.uint64):
        yield C("PopulationCount", [rand(rng, t, (20,))])


def cases_einsum(rng, quick):
    for t in (np.float32, np.float64, np.complex64, np.int32, np.float16, BF16):
        for eq, shapes in (
            ("ab,bc->ac", [(3, 4), (4, 5)]), ("ab,cb->ac", [(3, 4), (5, 4)]), ("abc,abd->acd", [(2, 3, 4), (2, 3, 5)]), ("ab->ba", [(3, 4)]), ("ab->a", [(3, 4)]), ("ab->", [(3, 4)]),
            ("aa->a", [(4, 4)]), ("aa->", [(4, 4)]), ("abca->bc", [(3, 2, 4, 3)]), ("a,b->ab", [(3,), (4,)]), ("a,a->", [(3,), (3,)]), ("ab,ab->ab", [(3, 4), (3, 4)]), ("ab,b->ba", [(3, 4), (4,)]),
            ("...ab,...bc->...ac", [(2, 3, 4), (2, 4, 5)]), ("...ab,...bc->...ac", [(2, 1, 3, 4), (5, 4, 5)]), ("...ab,bc->...ac", [(2, 6, 3, 4), (4, 5)]), ("a...->...", [(2, 3, 4)]), ("a...->a...", [(2, 3, 4)]), ("...a->...", [(5,)]),
            ("aab,bc->ac", [(3, 3, 2), (2, 4)]), ("abc,cd->abd", [(2, 3, 4), (4, 5)]), ("bqhd,bkhd->bhqk", [(2, 3, 4, 5), (2, 6, 4, 5)]), ("bhqk,bkhd->bqhd", [(2, 4, 3, 6), (2, 6, 4, 5)]), ("abc,ad->bcd", [(2, 3, 4), (2, 5)]),
            ("ab,c->ac", [(3, 4), (5,)]), ("ab,bc->abc", [(3, 4), (4, 5)]), ("ab,bc->ac", [(0, 4), (4, 5)]), ("ab,bc->ac", [(3, 0), (0, 5)]), (",->", [(), ()]), ("->", [()]), ("a,->a", [(3,), ()]),
            ("ab,bc->ac", [(3, 4), (3, 5)]), ("ab", [(3, 4)]), ("ab->ab", [(3,)]), ("aa->a", [(3, 4)]), ("a...b...->a", [(3, 4)]), ("ab,...->ab", [(3, 4), (2,)]), ("...a->a", [(2, 3)]),
            ("a1->a", [(2, 3)]), ("ab,bc", [(3, 4), (4, 5)]), ("AbC,Cb->AC", [(2, 3, 4), (4, 3)]),
            ("a->aa", [(3,)]), ("ab->bab", [(2, 3)]), ("a,b->aba", [(2,), (3,)]), ("...a->a...a", [(2, 3)]), ("aab,bc->aac", [(2, 2, 3), (3, 4)]), ("a->aa", [(0,)]),
        ):
            tol = 3e-2 if t in (np.float16, BF16) else 1e-4
            yield C("Einsum", [[rand(rng, t, s, -3, 3) for s in shapes]], equation=eq, tol=tol, atol=0.3 if t in (np.float16, BF16) else 1e-4)


def cases_norms(rng, quick):
    for t in (np.float32, np.float64, np.float16, BF16, np.complex64, np.complex128):
        for shape in ((5,), (3, 4), (2, 3, 4), (0, 3), ()):
            for ax in ([], [0], [-1], list(range(len(shape)))):
                if len(shape) == 0 and ax:
                    continue
                for keep in (False, True):
                    yield C("EuclideanNorm", [rand(rng, t, shape, -5, 5), i32(ax)], keep_dims=keep, tol=2e-2 if t in (np.float16, BF16) else 1e-5)
    for t in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64):
        x = np.arange(24).reshape(2, 3, 4).astype(t)
        for ax in ([], [0], [-1], [0, 2], [0, 1, 2]):
            yield C("EuclideanNorm", [x, i32(ax)])
            yield C("EuclideanNorm", [x * t(9) + t(100), i64(ax)], keep_dims=True)  # small types wrap around
        yield C("EuclideanNorm", [np.array([np.iinfo(t).max, np.iinfo(t).max // 2 + 1, 7], t), i32(0)])
        yield C("EuclideanNorm", [np.array([1 << (np.iinfo(t).bits // 2 - 1), 1 << (np.iinfo(t).bits // 2 - 1)], t), i32([0])])
        yield C("EuclideanNorm", [np.zeros((0, 3), t), i32([0])])
    for t in (np.float32, np.float64, np.float16):
        for shape in ((5,), (3, 4), (2, 3, 4)):
            for ax in range(-len(shape), len(shape)):
                for ex in (False, True):
                    for rev in (False, True):
                        yield C("CumulativeLogsumexp", [rand(rng, t, shape, -5, 5), i32(ax)], exclusive=ex, reverse=rev, tol=5e-3 if t is np.float16 else 1e-5, atol=1e-2 if t is np.float16 else 1e-5)


def cases_volume_patches(rng, quick):
    op = "ExtractVolumePatches"
    for t in (np.float32, np.float64, np.float16, BF16, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64):
        for shape in ((2, 4, 5, 3, 2), (1, 1, 1, 1, 1), (1, 6, 2, 7, 3), (0, 3, 3, 3, 1), (1, 2, 3, 4, 0)):
            for ks in ((1, 1, 1), (2, 2, 2), (1, 3, 2), (3, 2, 1)):
                for st in ((1, 1, 1), (2, 1, 3), (2, 2, 2)):
                    for pad in ("SAME", "VALID"):
                        yield C(op, [rand(rng, t, shape, 0, 9)], ksizes=[1, *ks, 1], strides=[1, *st, 1], padding=pad)
    v = rand(rng, np.float32, (1, 3, 3, 3, 2))
    for ks, st in (([1, 2, 2, 2, 2], [1] * 5), ([2, 2, 2, 2, 1], [1] * 5), ([1, 0, 2, 2, 1], [1] * 5), ([1] * 5, [1, 1, -1, 1, 1]), ([1] * 5, [2, 1, 1, 1, 1])):
        yield C(op, [v], ksizes=ks, strides=st, padding="SAME")
    yield C(op, [v[0]], ksizes=[1] * 5, strides=[1] * 5, padding="SAME")
    yield C(op, [v], ksizes=[1, 5, 1, 1, 1], strides=[1] * 5, padding="VALID")
