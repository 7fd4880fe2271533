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


def fits(small, shape):
    return all(a in (1, b) for a, b in zip(small[::-1], shape[::-1]))


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
                    ix, v, s = sparse(rng, t, shape, n)
                    d = d.astype(t)
                    at = lambda ix=ix, v=v, s=s, d=d, op=op: [(np.multiply if op == "Mul" else np.divide)(v, np.broadcast_to(d, s)[tuple(ix.T)])]  # TensorFlow has no complex ones
                    yield C("SparseDenseCwise" + op, [ix, v, s, d], like=at if np.issubdtype(t, np.complexfloating) and d.ndim <= len(s) and fits(d.shape, s) else None)
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
                    yield C("SparseTensorDenseMatMul", [ix, v, s, b], adjoint_a=aa, adjoint_b=ab, tol=2e-2 if t is BF16 else 1e-5, atol=3e-1 if t is BF16 else 1e-4)
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


def cases_cross(rng, quick):
    def col(t, batch, n, order=True):
        ix, v, s = sparse(rng, np.int64, (batch, 4), n, order)
        v = np.array([b"w%d" % (x % 7) for x in v], object) if t is object else v * 1234567
        return ix, v, s

    def dense(t, batch, n):
        return np.array([b"d%d" % i for i in range(batch * n)], object).reshape(batch, n) if t is object else rng.randint(-5, 9, (batch, n)).astype(np.int64)

    for types in ([object, object], [np.int64, object], [np.int64, np.int64], [object], [object, np.int64, object], []):
        for dtypes in ([], [object], [np.int64, object]):
            if not types and not dtypes:
                continue
            for n in (0, 3, 9):
                cols = [col(t, 5, n) for t in types]
                ds = [dense(t, 5, 2) for t in dtypes]
                ins = [[c[i] for c in cols] for i in range(3)] + [ds]
                kw = dict(sparse_types=[tf.string if t is object else tf.int64 for t in types], dense_types=[tf.string if t is object else tf.int64 for t in dtypes], N=len(types))
                for buckets in (0, 100):
                    yield C("SparseCross", ins, hashed_output=True, num_buckets=buckets, hash_key=956888297470, out_type=tf.int64, internal_type=tf.int64, **kw)
                    if not any(t is not object for t in dtypes):
                        for strong in (False, True):
                            yield C("SparseCrossHashed", ins + [i64(buckets), np.array(strong), i64(137, 42)], **kw)
                if all(t is object for t in types + dtypes):
                    yield C("SparseCross", ins, hashed_output=False, num_buckets=0, hash_key=7, out_type=tf.string, internal_type=tf.string, **kw)
                yield C("SparseCrossV2", ins + [np.array(b"_Y_", object)], **kw)
    a = col(object, 5, 9, False)
    kw = dict(sparse_types=[tf.string], dense_types=[], N=1, hashed_output=True, num_buckets=9, hash_key=1, out_type=tf.int64, internal_type=tf.int64)
    yield C("SparseCross", [[a[0]], [a[1]], [a[2]], []], **kw)
    yield C("SparseCross", [[a[0]], [a[1][:1]], [a[2]], []], **kw)
    yield C("SparseCross", [[a[0][:, :1]], [a[1]], [a[2]], []], **kw)


def cases_sets(rng, quick):
    def vals(t, shape):
        return np.array([b"s%d" % i for i in rng.randint(0, 5, int(np.prod(shape)))], object).reshape(shape) if t is object else rng.randint(0, 5, shape).astype(t)

    def sp(t, shape, n):
        ix, _, s = sparse(rng, np.int64, shape, n)
        return [ix, vals(t, (len(ix),)), s]

    for t in (np.int8, np.int32, np.int64, np.uint8, np.uint16, object):
        for op in ("a-b", "b-a", "intersection", "union", "UNION", "xor"):
            for sa, sb in (((3, 4), (3, 2)), ((2, 3, 4), (2, 3, 5)), ((0, 3), (0, 2)), ((3, 4), (2, 4)), ((4,), (4,)), ((2, 0), (2, 3))):
                yield C("DenseToDenseSetOperation", [vals(t, sa), vals(t, sb)], set_operation=op)
                if len(sa) > 1:
                    for n in (0, 4, 7):
                        yield C("DenseToSparseSetOperation", [vals(t, sa)] + sp(t, sb, n), set_operation=op)
                        yield C("SparseToSparseSetOperation", sp(t, sa, n) + sp(t, sb, 6 - n % 5), set_operation=op)
        for shape, n in SHAPES[1:]:
            yield C("SetSize", sp(t, shape, n))
    a = sp(np.int64, (3, 4), 6)
    yield C("SetSize", [a[0][::-1].copy(), a[1], a[2]])
    yield C("SetSize", [a[0][::-1].copy(), a[1], a[2]], validate_indices=False)
    yield C("SetSize", [a[0] + 5, a[1], a[2]])


def cases_serialized(rng, quick):
    def protos(parts):
        return np.array([[tf.make_tensor_proto(x).SerializeToString() for x in p] for p in parts], object)

    for t in (np.float32, np.int64, object, np.bool_):
        for shape, n in SHAPES:
            p = sparse(rng, t, shape, n)
            yield C("DeserializeSparse", [protos([p])[0]], dtype=tf.string if t is object else tf.as_dtype(t))
            many = [p, sparse(rng, t, tuple(d + 1 for d in shape), 2), p]
            yield C("DeserializeManySparse", [protos(many)], dtype=tf.string if t is object else tf.as_dtype(t))
            yield C("DeserializeSparse", [protos(many + [p]).reshape(2, 2, 3)], dtype=tf.string if t is object else tf.as_dtype(t))
    p, q = sparse(rng, np.float32, (4, 6), 5), sparse(rng, np.float32, (4,), 2)
    yield C("DeserializeManySparse", [protos([p, q])], dtype=tf.float32)
    yield C("DeserializeManySparse", [protos([p])], dtype=tf.int32)
    yield C("DeserializeManySparse", [protos([p])[:, :2]], dtype=tf.float32)
    yield C("DeserializeManySparse", [np.array([[b"x", b"y", b"z"]], object)], dtype=tf.float32)
    yield C("DeserializeManySparse", [np.zeros((0, 3), object)], dtype=tf.float32)
    for ta in (np.float32, BF16):
        for tb in (np.float32, BF16):
            for xa in (False, True):
                for xb in (False, True):
                    a, b = rand(rng, ta, (4, 3) if xa else (3, 4), -2, 2), rand(rng, tb, (5, 4) if xb else (4, 5), -2, 2)
                    yield C("SparseMatMul", [a, b], transpose_a=xa, transpose_b=xb, a_is_sparse=True, tol=1e-2, atol=1e-2)
    yield C("SparseMatMul", [rand(rng, np.float32, (3, 4)), rand(rng, np.float32, (3, 4))])
