"""Rows put into others, layouts, fingerprints, counts per row."""
import numpy as np
import tensorflow as tf

from cases_math import rand
from kernels import Case as C

i32 = lambda x: np.array(x, np.int32)
i64 = lambda x: np.array(x, np.int64)
S = lambda x: np.array(x, object)


def cases_rows(rng, quick):
    for t in (np.float32, np.float64, np.int32, np.int64, np.float16):
        for shape, at in (((4, 3), [0, 2]), ((4, 3), [1, 1]), ((5,), [-1, 7, 0]), ((3, 2, 2), []), ((0, 2), []), ((2, 0), [1])):
            x, v = rand(rng, t, shape, -5, 5), rand(rng, t, (len(at),) + shape[1:], -5, 5)
            for op in ("InplaceUpdate", "InplaceAdd", "InplaceSub"):
                yield C(op, [x, i32(at), v])
            yield C("DeepCopy", [x])
    x = rand(rng, np.float32, (4, 3))
    yield C("InplaceUpdate", [rand(rng, np.bool_, (4,)), i32([1]), rand(rng, np.bool_, (1,))])
    for at, v in ((0, (3,)), ([0], (3,)), ([0], (1, 2)), ([0, 1], (1, 3)), ([[0]], (1, 3))):
        yield C("InplaceUpdate", [x, i32(at), rand(rng, np.float32, v)])
    for s in ([2, 3], [], [0]):
        yield C("Empty", [i32(s)], dtype=tf.float32, init=True)
    for s in ([-1], 3, [[1]]):
        yield C("Empty", [i32(s)], dtype=tf.float32, init=True)


def cases_layouts(rng, quick):
    for t in (i32, i64):
        for a, b in (("NHWC", "NCHW"), ("NCHW", "NHWC"), ("NHWC", "HWNC"), ("NDHWC", "NCDHW"), ("NHWC", "NHWC"), ("HWNC", "NHWC")):
            k = dict(src_format=a, dst_format=b)
            n = len(a)
            yield C("DataFormatDimMap", [t(range(-n, n))], **k)
            yield C("DataFormatDimMap", [t(1)], **k)
            yield C("DataFormatDimMap", [t([[0, 1], [2, 3]])], **k)
            yield C("DataFormatVecPermute", [t([7, 4, 9, 3, 5][:n])], **k)
            yield C("DataFormatVecPermute", [t([[7, 4], [9, 3], [4, 5], [5, 1], [6, 6]][:n])], **k)
            yield C("DataFormatVecPermute", [t([7, 4, 9][:n - 2])], **k)
            yield C("DataFormatVecPermute", [t([[7, 4], [9, 3], [1, 2]][:n - 2])], **k)
    for x in ([1, 2, 3], 4, [[1, 2, 3]] * 4, [[[1, 2]]]):
        yield C("DataFormatVecPermute", [i32(x)])
    for op in ("DataFormatDimMap", "DataFormatVecPermute"):
        for a, b in (("NHW", "NCHW"), ("NHWC", "NCH"), ("NHWC", "NCHX"), ("NHWC", "NHHC")):
            yield C(op, [i32([0, 1, 2, 3])], src_format=a, dst_format=b)


def cases_fingerprint(rng, quick):
    farm = S(b"farmhash64")
    for x in (rand(rng, np.float32, (3, 5)), rand(rng, np.uint8, (2, 100)), rand(rng, np.int64, (4,)), rand(rng, np.float64, (0, 3)), rand(rng, np.int32, (2, 3, 4)),
              S([b"a", b"", b"long" * 50]), S([[b"a", b"b"], [b"c", b""]]), rand(rng, np.int16, (2, 0))):
        yield C("Fingerprint", [x, farm])
    yield C("Fingerprint", [np.float32(1), farm])
    yield C("Fingerprint", [i32([1]), S(b"md5")])
    yield C("Fingerprint", [i32([1]), S([b"farmhash64"])])


def cases_counts_of_rows(rng, quick):
    for t in (np.int32, np.int64):
        for w in (np.int32, np.int64, np.float32, np.float64):
            for binary in (False, True):
                x = rng.randint(0, 7, 6).astype(t)
                for splits in ([0, 2, 2, 6], [0, 6], [0, 0, 0, 6]):
                    for weights in (np.zeros(0, w), rand(rng, w, (6,), 0, 5)):
                        yield C("RaggedBincount", [i64(splits), x, np.array(5, t), weights], binary_output=binary)
    x = i32([1, 2])
    for splits, size in (([], 3), ([1, 2], 3), ([0, 1], 3), ([0, 2], -1), ([0, 2], [3])):
        yield C("RaggedBincount", [i64(splits), x, i32(size), np.zeros(0, np.float32)])
    yield C("RaggedBincount", [i64([0, 2]), i32([-1, 1]), i32(3), np.zeros(0, np.float32)])
    yield C("RaggedBincount", [i64([0, 2, 4]), i32([2, 1, 1, 1]), i32(3), np.array([[1, 2], [3, 4]], np.float32)])
    for w in ((2, 2), (4, 1)):  # weights are counted, whatever their shape
        for b in (False, True):
            yield C("RaggedBincount", [i64([0, 2, 4]), i32([0, 2, 1, 2]), i32(3), rng.rand(*w).astype(np.float32)], binary_output=b)
            yield C("SparseBincount", [i64([[0, 0], [0, 1], [1, 0], [1, 1]]), i32([0, 2, 1, 2]), i64([2, 2]), i32(3), rng.rand(*w).astype(np.float32)], binary_output=b)
        yield C("Bincount", [i32([0, 2, 1, 2]), i32(3), rng.rand(*w).astype(np.float32)])
        yield C("DenseBincount", [i32([0, 2, 1, 2]), i32(3), rng.rand(*w).astype(np.float32)])
    w = np.zeros(0, np.float32)
    yield C("Bincount", [i32([0, 2]), i32([3]), w])
    yield C("DenseBincount", [i32([0, 2]), i32([3]), w])
    yield C("SparseBincount", [i64([[0], [1]]), i32([0, 2]), i64([2]), i32([3]), w])
    yield C("RaggedBincount", [i64([0, 2]), i32([0, 2]), i32([3]), w])


def cases_sums_of_slices(rng, quick):
    for t in (np.float32, np.int32, np.complex64):
        for idx in ([[0], [2]], [[1], [1]]):
            yield C("ScatterNdNonAliasingAdd", [rand(rng, t, (4, 2)), i32(idx), rand(rng, t, (2, 2))])
    yield C("ScatterNdNonAliasingAdd", [rand(rng, np.float32, (4, 2)), i32([[4]]), rand(rng, np.float32, (1, 2))])
    yield C("ScatterNd", [i32([[4], [3], [3], [7]]), S([b"aa", b"b", b"b", b"c"]), i32([8])])
