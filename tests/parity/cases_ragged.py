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


def counted(op, inputs, weights, t, binary=False, **attrs):
    """A count of any of the three kinds; weights None: how often."""
    return C(op, [*inputs, np.zeros([0], t) if weights is None else weights.astype(t)], binary_output=binary, **attrs)


def cases_counts(rng, quick):
    dense, sparse, ragged = "DenseCountSparseOutput", "SparseCountSparseOutput", "RaggedCountSparseOutput"
    for vt in (I32, I64):
        for t in (I32, I64, np.float32, np.float64):
            for shape in ((7,), (3, 5), (0,), (2, 0), (1, 1), (40, 30)):
                x = rng.randint(0, 9, shape).astype(vt)
                flat = x.reshape(-1)
                ix = np.stack([np.sort(rng.randint(0, 3, flat.size)), rng.randint(0, 50, flat.size)], 1).astype(I64) if len(shape) == 2 else rng.randint(0, 50, (flat.size, 1)).astype(I64)
                ds = i64([3, 50][-ix.shape[1]:])
                splits = np.sort(np.concatenate([[0, flat.size], rng.randint(0, flat.size + 1, 3)])).astype(I64)
                for w in (None, rng.rand(*shape) * 10):
                    fw = None if w is None else w.reshape(-1)
                    for attrs in ({}, {"minlength": 20}, {"maxlength": 4}, {"minlength": 3, "maxlength": 6}, {"maxlength": 0}, {"binary": True}, {"binary": True, "maxlength": 5}):
                        yield counted(dense, [x], w, t, **attrs)
                        yield counted(sparse, [ix, flat, ds], fw, t, **attrs)
                        yield counted(ragged, [splits, flat], fw, t, **attrs)
    one, x, ix = np.ones([3]), np.array([1, 2, 2], I32), i64([[0, 1], [0, 2], [1, 0]])
    f = np.float32
    yield counted(dense, [np.array([1, 2**31 - 1], I32)], None, I64)
    yield counted(dense, [i64([2**40, 5])], None, I64)
    for bad in (np.array(1, I32), np.zeros([1, 1, 1], I32), np.array([1, -1], I32), np.zeros([0, 3], I32)):
        yield counted(dense, [bad], None, f)
    yield counted(dense, [x], one[:2], f)
    yield counted(dense, [x], one.reshape(1, 3), f)
    for i, v, s in ((ix, x, [2, 2]), (ix, x, [3]), (ix[:2], x, [2, 3]), (ix[:, 0], x, [2]), (ix, x[:2], [2, 3]), (ix, -x, [2, 3]), (ix, x, [0, 3]), (ix, x, [2**31, 3]), (ix, x, []), (-ix, x, [2, 3]), (np.zeros([0, 2], I64), x[:0], [0, 3]),
                    (np.zeros([3, 0], I64), x, []), (np.zeros([0, 3], I64), x[:0], [2, 2, 2]), (i64([[0, 1, 1], [1, 0, 2], [1, 0, 2]]), x, [2, 2, 3])):
        yield counted(sparse, [i, v, i64(s)], None, f)
    yield counted(sparse, [ix, x, i64([2, 3])], one[:2], f)
    for s in ([], [0], [1, 3], [0, 2], [0, 4]):
        yield counted(ragged, [i64(s), x], None, f)
    yield C(ragged, [i64([0, 2, 1, 3]), x, np.zeros([0], f)], binary_output=False, code=3)  # TensorFlow counts what comes first
    yield counted(ragged, [i64([0, 3]), -x], None, f)
    yield counted(ragged, [i64([0, 3]), x], one[:2], f)


def cross_of(order, ragged=(), sparse=(), dense=(), out=np.int64, st=tf.int64, buckets=0, key=956888297470, **kw):
    return C("RaggedCross", [[v for v, _ in ragged], [s for _, s in ragged], [i for i, _, _ in sparse], [v for _, v, _ in sparse], [s for _, _, s in sparse], list(dense)], input_order=order, hashed_output=out is np.int64,
             num_buckets=buckets, hash_key=key, out_values_type=tf.int64 if out is np.int64 else tf.string, out_row_splits_type=st, Nsparse=len(sparse), **kw)


def cases_cross(rng, quick):
    def values(n, text):
        return np.array([b"v%d" % i for i in rng.randint(0, 99, n)], object).reshape(n) if text else rng.randint(-50, 2**40, n).astype(I64)

    for out in (np.int64, object):
        for st in (tf.int64, tf.int32):
            for rows in (0, 1, 4):
                for _ in range(3 if quick else 20):
                    ragged, sparse, dense = [], [], []
                    order = "".join(rng.choice(list("RSD"), rng.randint(1, 4)))
                    for c in order:
                        text = bool(rng.randint(2))
                        if c == "R":
                            s = split_of(rng, rows, I32 if st == tf.int32 else I64)
                            ragged.append((values(int(s[-1]), text), s))
                        elif c == "S":
                            n = rng.randint(0, 4 * rows + 1)
                            ix = np.stack([np.sort(rng.randint(0, max(rows, 1), n)), np.arange(n)], 1).astype(I64)
                            sparse.append((ix, values(n, text), i64([rows, 50])))
                        else:
                            w = rng.randint(0, 3)
                            dense.append(values(rows * w, text).reshape(rows, w))
                    yield cross_of(order, ragged, sparse, dense, out, st, buckets=int(rng.choice([0, 7])), key=int(rng.randint(2**40)))
    r, s, d = (i64([1, 2, 3]), i64([0, 2, 3])), (i64([[0, 0], [1, 0]]), i64([4, 5]), i64([2, 1])), i64([[6], [7]])
    yield cross_of("RSD", [r], [s], [d])
    for order, ragged, sparse, dense in (("RS", [r], [s], [d]), ("RRR", [r], [s], [d]), ("RXD", [r], [s], [d]), ("", [], [], []), ("R", [(i64([[1, 2, 3]]), r[1])], [], []), ("R", [(r[0], i64([]))], [], []), ("R", [(r[0], i64([1, 3]))], [], []),
                                         ("R", [(r[0], i64([0, 2]))], [], []), ("R", [(r[0], i64([0, 2, 1, 3]))], [], []), ("RD", [r], [], [d[:1]]), ("RS", [r], [(s[0], s[1], i64([3, 1]))], []), ("D", [], [], [d[0]]),
                                         ("S", [], [(s[0], s[1], i64([2]))], []), ("S", [], [(s[0][0], s[1], s[2])], []), ("S", [], [(s[0], s[1].reshape(2, 1), s[2])], [])):
        yield cross_of(order, ragged, sparse, dense)
    yield cross_of("S", [], [(s[0][:1], s[1], s[2])], code=3)  # TensorFlow reads what is not there
    yield cross_of("S", [], [(s[0], s[1], i64([-1, 2]))], code=3)
