"""Ragged tensors as splits and values."""
import numpy as np
import tensorflow as tf

from cases_math import rand
from kernels import Case as C

I32, I64 = np.int32, np.int64


def i64(x):
    return np.array(x, I64)


def split_of(rng, rows, t):
    return np.concatenate([[0], np.cumsum(rng.randint(0, 4, rows))]).astype(t)


def nested(rng, levels, rows, t):
    out = []
    for _ in range(levels):
        out.append(split_of(rng, rows, t))
        rows = int(out[-1][-1])
    return out, rows


def cases_to_sparse(rng, quick):
    for t in (I32, I64):
        for levels in (1, 2, 3):
            for inner in ((), (2,), (2, 3), (0,)):
                for rows in (0, 1, 4):
                    s, n = nested(rng, levels, rows, t)
                    v = np.array([b"v%d" % i for i in range(n)], object) if not inner and n else rand(rng, np.float32, (n,) + inner)
                    yield C("RaggedTensorToSparse", [s, v])
    v = rand(rng, np.float32, (3,))
    for s in ([], [1, 3], [0, 4], [0, 2], [0, 2, 1, 3]):
        yield C("RaggedTensorToSparse", [[i64(s)], v])
    yield C("RaggedTensorToSparse", [[i64([0, 2]), i64([0, 3])], v])


def cases_range(rng, quick):
    for t in (I32, I64, np.float32, np.float64):
        for a, b, d in (([0, 5, 8], [3, 5, 12], 1), (0, [3, 5, 0], [1, 2, 3]), ([10, 3], [2, 9], [-3, 2]), (2, 9, 3), ([], [], []), (0, 3, -1), (5, 5, 1)):
            for s in (tf.int32, tf.int64):
                yield C("RaggedRange", [np.array(a, t), np.array(b, t), np.array(d, t)], Tsplits=s)
    for a, b, d in ((0, 3, 0), ([0, 1], [1, 2, 3], 1), ([[0]], 3, 1), (0, [[3]], 1)):
        yield C("RaggedRange", [np.array(a, I32), np.array(b, I32), np.array(d, I32)])
    yield C("RaggedRange", [np.array(0.5, np.float32), np.array([1.4, 2.6], np.float32), np.array([.25, .3], np.float32)])
    yield C("RaggedRange", [np.array(0, np.float32), np.array(np.inf, np.float32), np.array(1, np.float32)])


def cases_gather(rng, quick):
    for t in (I32, I64):
        for levels in (1, 2, 3):
            for inner in ((), (2,)):
                s, n = nested(rng, levels, 4, t)
                v = rand(rng, np.float32, (n,) + inner) if inner else np.array([b"x%d" % i for i in range(n)] or [], object)
                for shape in ((), (3,), (2, 2), (0,), (2, 0)):
                    if v.dtype == object and not n:
                        continue
                    ids = rng.randint(0, 4, shape).astype(t)
                    if levels + len(shape) - 1 >= 0:
                        yield C("RaggedGather", [s, v, np.array(ids)], OUTPUT_RAGGED_RANK=levels + len(shape) - 1)
    v = rand(rng, np.float32, (3,))
    for s in ([1, 3], [0, 4], [0, 2, 1], [-1, 2]):
        yield C("RaggedGather", [[i64(s)], v, i64([0])], OUTPUT_RAGGED_RANK=1)
    for ids in ([1], [-1]):
        yield C("RaggedGather", [[i64([0, 3])], v, i64(ids)], OUTPUT_RAGGED_RANK=1)
    yield C("RaggedGather", [[i64([0, 3])], np.float32(1), i64([0])], OUTPUT_RAGGED_RANK=1)


def cases_to_tensor(rng, quick):
    for t in (I32, I64):
        for levels in (1, 2, 3):
            for inner in ((), (2,), (2, 3)):
                s, n = nested(rng, levels, 3, t)
                v = rand(rng, np.float32, (n,) + inner)
                for dflt in (np.float32(7), rand(rng, np.float32, inner[-1:]), rand(rng, np.float32, inner)):
                    for want in (-1, [-1] * (levels + 1 + len(inner)), [2] + [-1] * (levels + len(inner)), [5, 2] + [-1] * (levels - 1 + len(inner))):
                        yield C("RaggedTensorToTensor", [np.array(want, t), v, np.array(dflt), s], row_partition_types=["ROW_SPLITS"] * levels)
                ids = [np.repeat(np.arange(len(x) - 1), np.diff(x)).astype(t) for x in s]
                yield C("RaggedTensorToTensor", [np.array(-1, t), v, np.float32(0), [np.array(3, t)] + ids],
                        row_partition_types=["FIRST_DIM_SIZE"] + ["VALUE_ROWIDS"] * levels)
                yield C("RaggedTensorToTensor", [np.array([4] + [2] * levels + list(inner), t), v, np.float32(0), [np.array(3, t)] + ids],
                        row_partition_types=["FIRST_DIM_SIZE"] + ["VALUE_ROWIDS"] * levels)
    v = rand(rng, np.float32, (3,))
    k = dict(row_partition_types=["ROW_SPLITS"])
    strings = np.array([b"a", b"b", b"c"], object)
    yield C("RaggedTensorToTensor", [i64(-1), strings, np.array(b"-", object), [i64([0, 1, 3])]], **k)
    yield C("RaggedTensorToTensor", [i64([]), v, np.float32(0), [i64([0, 3])]], **k)
    yield C("RaggedTensorToTensor", [i64([1]), v, np.float32(0), [i64([0, 3])]], **k)
    yield C("RaggedTensorToTensor", [i64(-1), v, np.float32(0), [i64([])]], **k)
    yield C("RaggedTensorToTensor", [i64(-1), v, rand(rng, np.float32, (2,)), [i64([0, 3])]], **k)
    yield C("RaggedTensorToTensor", [i64(-1), v, np.float32(0), [i64([0, 1, 2])]], row_partition_types=["VALUE_ROWIDS"])
    yield C("RaggedTensorToTensor", [i64(-1), v, np.float32(0), [i64(2), i64([0, 1, 2])]], row_partition_types=["FIRST_DIM_SIZE", "VALUE_ROWIDS"])


def cases_fill_rows(rng, quick):
    from cases_types import ANY, NUMBERS, some
    for t in ANY:
        for ids, n in (([0, 2, 2, 3], 5), ([0, 0, 1, 2], 3), ([3, 0, 3, 1], 4), ([], 3), ([], 0)):
            yield C("RaggedFillEmptyRows", [i64(ids), some(t, len(ids)), i64(n), some(t, start=5)])
    v, z = some(np.float32, 3), np.float32(0)
    for ids, n in (([0, 3, 1], 3), ([0, -1, 1], 3), ([0, 0, 0], 0), ([0, 1], 3), ([[0, 1, 2]], 3), ([0, 1, 2], [3]), ([0, 1, 2], -1)):
        yield C("RaggedFillEmptyRows", [i64(ids), v, i64(n), z])
    yield C("RaggedFillEmptyRows", [i64([0, 1, 2]), v, i64(3), v])
    yield C("RaggedFillEmptyRows", [i64([[0, 1, 2]]), v.reshape(1, 3), i64(3), z])
    for t in NUMBERS:
        yield C("RaggedFillEmptyRowsGrad", [i64([0, 3, 4]), some(t, 6)])
        yield C("RaggedFillEmptyRowsGrad", [i64([]), some(t, 2)])
    for at in ([0, 6], [0, -1], [[0]]):
        yield C("RaggedFillEmptyRowsGrad", [i64(at), v])
    yield C("RaggedFillEmptyRowsGrad", [i64([0]), v.reshape(1, 3)])
