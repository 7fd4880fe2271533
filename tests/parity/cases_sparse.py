"""Sparse tensors: moving entries, arithmetic, products, reductions."""
import numpy as np
import tensorflow as tf

from cases_math import BF16, rand
from kernels import Case as C

NUMS = [np.float32, np.float64, np.int32, np.int64, np.complex64, np.float16, np.int8]
ANY = [np.float32, np.int64, object, np.bool_]


def i64(*v):
    return np.array(v[0] if len(v) == 1 else v, np.int64)


def sparse(rng, t, shape, n, order=True, dup=False):
    """n entries at random places (fewer if there is no room)."""
    size = int(np.prod(shape))
    at = rng.randint(0, max(size, 1), n) if dup else rng.permutation(size)[:n]
    if order:
        at = np.sort(at)
    ix = np.stack(np.unravel_index(at, shape), 1).astype(np.int64) if size and len(at) else np.zeros((0, len(shape)), np.int64)
    return [ix, rand(rng, t, (len(ix),), -5, 5), i64(list(shape))]


SHAPES = [((5,), 3), ((4, 6), 7), ((2, 3, 4), 9), ((3, 1), 0), ((0, 3), 0), ((6, 2), 12)]


def cases_sparse_to_dense(rng, quick):
    for t in ANY + [np.float16, BF16, np.uint8, np.complex128]:
        for shape, n in SHAPES:
            ix, v, s = sparse(rng, t, shape, n)
            for it in (np.int32, np.int64):
                yield C("SparseToDense", [ix.astype(it), s.astype(it), v, rand(rng, t, ())])
                yield C("SparseToDense", [ix.astype(it), s.astype(it), rand(rng, t, ()), rand(rng, t, ())])
    f, d = rand(rng, np.float32, (3,)), np.float32(7) * np.ones((), np.float32)
    for valid in (True, False):
        for ix in ([[0, 1], [1, 1], [1, 0]], [[0, 1], [0, 1], [1, 0]], [[0, 1], [1, 1], [2, 0]], [[0, 1], [1, -1], [1, 0]], [[0, 1], [1, 0], [1, 1]]):
            yield C("SparseToDense", [i64(ix), i64(2, 2), f, d], validate_indices=valid)
        yield C("SparseToDense", [i64(0, 2, 4), i64([5]), f, d], validate_indices=valid)
        yield C("SparseToDense", [np.array(3, np.int64), i64([5]), f[0], d], validate_indices=valid)
    yield C("SparseToDense", [i64([[0], [1], [2]]), i64(2, 2), f, d])
    yield C("SparseToDense", [i64([[0], [1], [2]]), i64([3]), f[:2], d])
    yield C("SparseToDense", [i64([[0], [1], [2]]), i64([3]), f, f])
    yield C("SparseToDense", [i64([[[0]]]), i64([3]), f, d])
    yield C("SparseToDense", [i64([[0], [1], [2]]), i64([-3]), f, d])


def cases_sparse_reshape(rng, quick):
    for shape, new in (((4, 6), [24]), ((4, 6), [2, -1]), ((4, 6), [-1]), ((4, 6), [3, 2, 2, 2]), ((2, 3, 4), [4, 6]), ((4, 6), [4, 6]), ((4, 6), [5, -1]), ((4, 6), [5, 5]),
                       ((4, 6), [-1, -1]), ((4, 6), [-2, 12]), ((0, 3), [3, 0]), ((0, 3), [-1]), ((0, 3), [0, -1]), ((1,), [])):
        ix, _, s = sparse(rng, np.float32, shape, 7)
        yield C("SparseReshape", [ix, s, i64(new)])
    yield C("SparseReshape", [i64([[0, 0]]), i64(0, 3), i64([0])])
    yield C("SparseReshape", [i64([0, 0]), i64([3]), i64([3])])
    yield C("SparseReshape", [i64([[0]]), i64(3, 1), i64([3])])
    yield C("SparseReshape", [i64([[0]]), i64([[3]]), i64([3])])


def cases_fill_rows(rng, quick):
    for t in ANY:
        for shape, n in SHAPES:
            for order in (True, False):
                ix, v, s = sparse(rng, t, shape, n, order)
                yield C("SparseFillEmptyRows", [ix, v, s, rand(rng, t, ())])
    ix, v, s = sparse(rng, np.float32, (4, 6), 5)
    z = np.zeros((), np.float32)
    yield C("SparseFillEmptyRows", [ix + 4, v, s, z])
    yield C("SparseFillEmptyRows", [ix - 4, v, s, z])
    yield C("SparseFillEmptyRows", [ix, v[:2], s, z])
    yield C("SparseFillEmptyRows", [ix, v, s, v])
    yield C("SparseFillEmptyRows", [ix, v, i64([]), z])
    yield C("SparseFillEmptyRows", [i64([[0, 0]]), v[:1], i64(0, 2), z])
    for t in NUMS:
        yield C("SparseFillEmptyRowsGrad", [i64(0, 3, 4), rand(rng, t, (6,), -5, 5)])
        yield C("SparseFillEmptyRowsGrad", [i64([]), rand(rng, t, (2,), -5, 5)])
    yield C("SparseFillEmptyRowsGrad", [i64(0, 6), v])
    yield C("SparseFillEmptyRowsGrad", [i64(0, -1), v])
    yield C("SparseFillEmptyRowsGrad", [i64([[0]]), v])


def cases_sparse_order(rng, quick):
    for t in ANY:
        for shape, n in SHAPES:
            yield C("SparseReorder", sparse(rng, t, shape, n, False))
            yield C("SparseReorder", sparse(rng, t, shape, n, True))
            for d in range(-len(shape) - 1, len(shape) + 1):
                parts = [sparse(rng, t, shape, n) for _ in range(3)]
                yield C("SparseConcat", [[p[i] for p in parts] for i in range(3)], concat_dim=d)
                for k in (1, 2, 3, 4):
                    yield C("SparseSplit", [np.array(d, np.int64)] + sparse(rng, t, shape, n), num_split=k)
            for _ in range(4):
                start, size = rng.randint(0, 4, len(shape)), rng.randint(0, 5, len(shape))
                sp = sparse(rng, t, shape, n)
                yield C("SparseSlice", sp + [i64(start), i64(size)])
    a, b = sparse(rng, np.float32, (4, 6), 5), sparse(rng, np.float32, (4, 5), 5)
    yield C("SparseConcat", [[p[i] for p in (a, b)] for i in range(3)], concat_dim=0)
    yield C("SparseConcat", [[p[i] for p in (a, b)] for i in range(3)], concat_dim=1)
    c = sparse(rng, np.float32, (4,), 2)
    yield C("SparseConcat", [[p[i] for p in (a, c)] for i in range(3)], concat_dim=0)
    yield C("SparseSlice", a + [i64([0]), i64(1, 1)])
    yield C("SparseReorder", [a[0], a[1][:2], a[2]])
    yield C("SparseReorder", [a[0], a[1], i64([4])])
    for t in NUMS:
        yield C("SparseSliceGrad", [rand(rng, t, (2,), -5, 5), i64([[0, 1], [1, 1], [2, 2], [3, 0]]), i64(1, 0), i64([[0, 1], [1, 2]])])
    yield C("SparseSliceGrad", [rand(rng, np.float32, (2,)), i64([[0, 1], [1, 1]]), i64(1, 0), i64([[0, 1], [1, 2]])])
    yield C("SparseSliceGrad", [rand(rng, np.float32, (3,)), i64([[0, 1], [1, 1]]), i64(1, 0), i64([[0, 1], [1, 2]])])


def cases_sparse_add(rng, quick):
    for t, r in ((np.float32, np.float32), (np.float64, np.float64), (np.int32, np.int32), (np.int64, np.int64), (np.int16, np.int16), (np.int8, np.int8),
                 (np.complex64, np.float32), (np.complex128, np.float64)):
        for shape, n in SHAPES:
            for thresh in (0, 2, -1):
                yield C("SparseAdd", sparse(rng, t, shape, n) + sparse(rng, t, shape, n) + [np.array(thresh, r)])
    a, b = sparse(rng, np.float32, (4, 6), 5), sparse(rng, np.float32, (4, 5), 5)
    yield C("SparseAdd", a + b + [np.array(0, np.float32)])
    yield C("SparseAdd", a + a + [np.zeros(1, np.float32)])
    for t in (np.float32, np.float64, np.int64, np.int32):
        s = np.array([[0, 1], [1, 1], [2, 2], [3, 0]])
        yield C("SparseAddGrad", [rand(rng, t, (4,), -5, 5), i64(s[:3]), i64(s[1:]), i64(s)])
        yield C("SparseAddGrad", [rand(rng, t, (2,), -5, 5), i64(s[:3]), i64(s[1:]), i64(s[1:3])])
        yield C("SparseAddGrad", [rand(rng, t, (3,), -5, 5), i64(s[:3]), i64(s[1:]), i64(s)])
    for t in (np.float32, np.float64, np.int64, np.int32, np.uint8, np.float16):
        for shape, n in SHAPES:
            yield C("SparseSparseMaximum", sparse(rng, t, shape, n) + sparse(rng, t, shape, n))
            yield C("SparseSparseMinimum", sparse(rng, t, shape, n) + sparse(rng, t, shape, n))
    yield C("SparseSparseMinimum", a + b)


def cases_sparse_dense(rng, quick):
    for t in NUMS:
        for shape, n in SHAPES:
            for it in (np.int32, np.int64):
                ix, v, s = sparse(rng, t, shape, n, dup=n < 9 and int(np.prod(shape)) > 0)
                yield C("SparseTensorDenseAdd", [ix.astype(it), v, s.astype(it), rand(rng, t, shape, -5, 5)])
            for dense in (shape, (), shape[-1:], (1,) * len(shape), shape[:1] + (1,) * (len(shape) - 1), (9,), (1,) + shape):
                d = np.asarray(rand(rng, t, dense, 1, 5))
                d = np.where(d == 0, np.ones_like(d), d)
                if 0 in shape and dense != shape:
                    continue  # TensorFlow refuses some of these
                for op in "Add", "Mul", "Div":
                    if op == "Add" and np.issubdtype(t, np.complexfloating):
                        continue
                    yield C("SparseDenseCwise" + op, sparse(rng, t, shape, n) + [d.astype(t)])
    ix, v, s = sparse(rng, np.float32, (4, 6), 5)
    yield C("SparseTensorDenseAdd", [ix, v, s, rand(rng, np.float32, (4, 5))])
    yield C("SparseTensorDenseAdd", [ix + 3, v, s, rand(rng, np.float32, (4, 6))])
    yield C("SparseTensorDenseAdd", [ix, v[:1], s, rand(rng, np.float32, (4, 6))])
    yield C("SparseDenseCwiseMul", [ix + 3, v, s, rand(rng, np.float32, (4, 6))])
    for t in (np.float32, np.float64, np.int32, np.complex64, np.complex128, BF16):
        for m, k, n in ((3, 4, 5), (1, 1, 1), (7, 2, 33), (4, 3, 0), (2, 5, 1)):
            for aa in (False, True):
                for ab in (False, True):
                    ix, v, s = sparse(rng, t, (k, m) if aa else (m, k), 6, dup=True)
                    b = rand(rng, t, (n, k) if ab else (k, n), -5, 5)
                    yield C("SparseTensorDenseMatMul", [ix, v, s, b], adjoint_a=aa, adjoint_b=ab, tol=2e-2 if t is BF16 else 1e-5, atol=1e-1 if t is BF16 else 1e-4)
    b = rand(rng, np.float32, (6, 2))
    ix, v, s = sparse(rng, np.float32, (4, 6), 5)
    yield C("SparseTensorDenseMatMul", [ix.astype(np.int32), v, s, b], Tindices=tf.int32)
    yield C("SparseTensorDenseMatMul", [ix, v, s, b[:5]])
    yield C("SparseTensorDenseMatMul", [ix + 4, v, s, b])
    yield C("SparseTensorDenseMatMul", [ix, v[:2], s, b])
    yield C("SparseTensorDenseMatMul", [ix, v, s[:1], b])
    yield C("SparseTensorDenseMatMul", [ix, v, s, b[0]])


def cases_sparse_reduce(rng, quick):
    for t in (np.float32, np.float64, np.int32, np.int64, np.uint8):
        for shape, n in SHAPES:
            r = len(shape)
            for axes in ([0], [-1], list(range(r)), [], [r - 1, 0], [r], [-r - 1]):
                for keep in (False, True):
                    for op in ("SparseReduceSum", "SparseReduceMax", "SparseReduceSumSparse", "SparseReduceMaxSparse"):
                        sp = sparse(rng, t, shape, n, order=keep)
                        yield C(op, sp + [np.array(axes, np.int32)], keep_dims=keep, tol=1e-5, atol=1e-5)
    yield C("SparseReduceSum", sparse(rng, np.float32, (4, 6), 9) + [np.array(1, np.int32)], tol=1e-5)
    for t in (np.float32, np.float64):
        for shape, n in SHAPES:
            yield C("SparseSoftmax", sparse(rng, t, shape, n), tol=1e-5)
    yield C("SparseSoftmax", [i64([[0, 9]]), rand(rng, np.float32, (1,)), i64(2, 2)])
