"""Linear algebra on small matrices. Vectors of Svd and SelfAdjointEigV2 are unique up to a phase: there the factors must multiply to the input."""
import numpy as np
import tensorflow as tf

from cases_math import rand
from kernels import Case as C

TYPES = [np.float32, np.float64, np.complex64, np.complex128]


def mat(rng, t, shape):
    return rand(rng, t, shape, -2, 2)


def tol(t):
    return dict(tol=2e-3, atol=2e-3) if t in (np.float32, np.complex64) else dict(tol=1e-8, atol=1e-8)


def ct(x):
    return np.conj(np.swapaxes(x, -1, -2))


def positive(rng, t, shape):
    a = mat(rng, np.complex128 if np.issubdtype(t, np.complexfloating) else np.float64, shape)
    return (a @ ct(a) + 0.5 * np.eye(shape[-1])).astype(t)


def near(a, b, t):
    e = 2e-3 if t in (np.float32, np.complex64) else 1e-8
    return a.shape == b.shape and np.allclose(a, b, rtol=e, atol=e)


def svd_check(x, full, t):
    def check(want, got):
        if [w.shape for w in want] != [g.shape for g in got]:
            return "shapes %s, TensorFlow's %s" % ([g.shape for g in got], [w.shape for w in want])
        if not near(got[0], want[0], t):
            return "values %s, TensorFlow's %s" % (got[0], want[0])
        if got[1].ndim > 1:
            s, u, v = got
            k = s.shape[-1]
            if not near((u[..., :k] * s[..., None, :]) @ ct(v[..., :k]), x, t):
                return "u s vᴴ is not the input"
            for q in (u, v):
                if not near(ct(q) @ q, np.broadcast_to(np.eye(q.shape[-1]), q.shape[:-2] + (q.shape[-1],) * 2).astype(q.dtype), t):
                    return "vectors are not orthonormal"
        return None
    return check


def eig_check(x, t):
    def check(want, got):
        if [w.shape for w in want] != [g.shape for g in got]:
            return "shapes"
        if not near(got[0], want[0], t):
            return "values %s, TensorFlow's %s" % (got[0], want[0])
        if got[1].ndim > 1:
            e, v = got
            low = np.tril(x, -1)
            h = low + ct(low) + np.real(np.einsum("...ii->...i", x))[..., None] * np.eye(x.shape[-1])
            if not near((v * e[..., None, :]) @ ct(v), h.astype(x.dtype), t):
                return "v e vᴴ is not the input"
        return None
    return check


def general_eig_check(x, t):
    """Eigenvalues of a real matrix come in no special order; vectors are unique up to a phase."""
    def check(want, got):
        if [(w.shape, w.dtype) for w in want] != [(g.shape, g.dtype) for g in got]:
            return "shapes or types"
        sort = lambda e: np.take_along_axis(e, np.argsort(np.round(e.real, 3) + 1e-3 * e.imag, -1), -1)
        a, b = (sort(w[0]) for w in (got, want)) if not np.iscomplexobj(x) else (got[0], want[0])
        if not near(a, b, t):
            return "values %s, TensorFlow's %s" % (a, b)
        if got[1].ndim > 1:
            e, v = got
            if not near(x @ v, v * e[..., None, :], t):
                return "the vectors are none"
            if not near(np.linalg.norm(v, axis=-2), np.ones(e.shape), t):
                return "the vectors have not length one"
        return None
    return check


def cases_eigenvalues(rng, quick):
    for t in TYPES:
        tout = tf.complex128 if t in (np.float64, np.complex128) else tf.complex64
        turn = np.array([[0, -1], [1, 0]], t)
        for x in [mat(rng, t, s) for s in ((1, 1), (2, 2), (5, 5), (3, 4, 4), (12, 12), (2, 0, 0))] + [turn, np.zeros((3, 3), t), np.eye(3, dtype=t)]:
            for v in (False, True):
                yield C("Eig", [x], compute_v=v, Tout=tout, check=general_eig_check(x, t))
        yield C("Eig", [mat(rng, t, (2, 3))], Tout=tout)
        yield C("Eig", [mat(rng, t, (3,))], Tout=tout)
        yield C("Eig", [np.full((2, 2), np.nan, t)], Tout=tout)
        yield C("Eig", [mat(rng, t, (2, 2))], Tout=tf.complex64 if tout == tf.complex128 else tf.complex128)


def cases_square(rng, quick):
    for t in TYPES:
        most = np.finfo(t).max
        for d in ([most, most], [most, -most, 2], [most, most, 1 / most, 1 / most], [np.inf, 1], [np.nan, 1], [0, 3])[0 if t in (np.float32, np.float64) else 2:]:  # complex infinities have NaN for an imaginary part, or not
            for op in ("MatrixDeterminant", "LogMatrixDeterminant"):
                yield C(op, [np.diag(np.array(d, t))], **tol(t))
        for shape in ((1, 1), (3, 3), (5, 5), (2, 3, 3), (2, 2, 4, 4), (0, 0), (0, 2, 2), (3, 4), (3,), (12, 12)):
            x = mat(rng, t, shape)
            yield C("MatrixDeterminant", [x], **tol(t))
            yield C("LogMatrixDeterminant", [x], **tol(t))
            for adj in (False, True):
                yield C("MatrixInverse", [x], adjoint=adj, **tol(t))
            if len(shape) > 1 and shape[-1] == shape[-2]:
                p = positive(rng, t, shape)
                yield C("Cholesky", [p], **tol(t))
                if t in (np.float32, np.float64):  # TensorFlow's complex numbers have no NaN here
                    yield C("Cholesky", [p - 100 * np.eye(shape[-1]).astype(t)], check=lambda w, g: None if np.isnan(g[0]).sum() == np.isnan(np.tril(w[0])).sum() else "lower half is not all NaN")
                for n in (1, 3, 0):
                    b = mat(rng, t, shape[:-1] + (n,))
                    for adj in (False, True):
                        yield C("MatrixSolve", [p, b], adjoint=adj, **tol(t))
                        for lower in (False, True):
                            yield C("MatrixTriangularSolve", [p, b], lower=lower, adjoint=adj, **tol(t))
            else:
                yield C("Cholesky", [x])
        z = np.zeros((2, 2), t)
        for op in ("MatrixInverse", "MatrixDeterminant", "LogMatrixDeterminant", "Cholesky"):
            yield C(op, [z], check=None if op != "Cholesky" else lambda w, g: None)
        yield C("MatrixSolve", [z, z])
        yield C("MatrixTriangularSolve", [z, z])
        yield C("MatrixSolve", [mat(rng, t, (3, 3)), mat(rng, t, (2, 2))])
        yield C("MatrixSolve", [mat(rng, t, (2, 3, 3)), mat(rng, t, (3, 2))])
        yield C("MatrixTriangularSolve", [positive(rng, t, (3, 3)), mat(rng, t, (4, 3, 2))], **tol(t))
        yield C("MatrixTriangularSolve", [positive(rng, t, (4, 1, 3, 3)), mat(rng, t, (2, 3, 2))], **tol(t))
        yield C("MatrixTriangularSolve", [positive(rng, t, (3, 3)), mat(rng, t, (2, 2))])


def cases_bands(rng, quick):
    for t in (np.float32, np.float64, np.complex64, np.complex128):
        def both(a, b):
            for lower in (False, True):
                for adj in (False, True):
                    yield C("BandedTriangularSolve", [a, b], lower=lower, adjoint=adj, **tol(t))
        for a, b in (((1, 1), (1, 1)), ((1, 4), (4, 2)), ((2, 4), (4, 3)), ((4, 4), (4, 1)), ((5, 3), (3, 2)), ((3, 6), (2, 6, 1)), ((2, 3, 5), (5, 2)),
                     ((3, 1, 2, 4), (2, 4, 2)), ((0, 2, 3), (0, 3, 1)), ((2, 3), (3, 0)), ((0, 3), (3, 1)), ((2, 3), (4, 1)), ((2, 3), (3,)), ((3,), (3, 1)),
                     ((2, 2, 3), (3, 3, 1))):
            x = mat(rng, t, a)
            yield from both(x + np.sign(x.real).astype(t) * 3, mat(rng, t, b))
        x = mat(rng, t, (2, 3)) + t(9)
        for row in (0, 1):
            zero = x.copy()
            zero[row, 1] = 0
            yield from both(zero, mat(rng, t, (3, 1)))
        yield from both(np.stack([x, x, x]), mat(rng, t, (3, 3, 2)))


def cases_factors(rng, quick):
    for t in TYPES:
        for shape in ((1, 1), (3, 3), (5, 3), (3, 5), (2, 4, 3), (2, 3, 4), (2, 3, 3), (0, 3), (3, 0), (8, 8), (3,)):
            x = mat(rng, t, shape)
            for full in (False, True):
                yield C("Qr", [x], full_matrices=full, **tol(t))
                if len(shape) > 1 and 0 not in shape:
                    yield C("Svd", [x], compute_uv=True, full_matrices=full, check=svd_check(x, full, t))
            yield C("Svd", [x], compute_uv=False, check=svd_check(x, False, t))
            if len(shape) > 1 and shape[-1] == shape[-2]:
                yield C("SelfAdjointEigV2", [x], compute_v=True, check=eig_check(x, t))
                yield C("SelfAdjointEigV2", [x], compute_v=False, check=eig_check(x, t))
            else:
                yield C("SelfAdjointEigV2", [x])
            if len(shape) > 1 and 0 not in shape:
                for l2 in (0.0, 0.3):
                    yield C("MatrixSolveLs", [x, mat(rng, t, shape[:-1] + (2,)), np.array(l2)], fast=True, tol=2e-2, atol=2e-2)
        low = np.outer(np.arange(4), np.ones(3)).astype(t)
        yield C("Svd", [low], compute_uv=True, full_matrices=True, check=svd_check(low, True, t))
        yield C("Svd", [np.zeros((3, 2), t)], compute_uv=True, full_matrices=True, check=svd_check(np.zeros((3, 2), t), True, t))


def cases_diagonals_of_any_matrix(rng, quick):
    """Every band in every size of matrix, those that lie partly or wholly outside too."""
    i32 = lambda x: np.array(x, np.int32)
    for lower in (-4, -2, 0, 3):
        for upper in (lower, lower + 1, lower + 3):
            for rows in (-1, 2, 5):
                for cols in (-1, 1, 5):
                    for n in (1, 2, 4):
                        x = rand(rng, np.float32, (upper - lower + 1, n) if upper > lower else (n,))
                        yield C("MatrixDiagV3", [x, i32([lower, upper]), i32(rows), i32(cols), np.float32(9)],
                                align=["LEFT_RIGHT", "RIGHT_LEFT", "LEFT_LEFT", "RIGHT_RIGHT"][n % 4])


def cases_functions_of_matrices(rng, quick):
    for t in TYPES:
        for shape in ((1, 1), (2, 2), (4, 4), (3, 3, 3), (0, 0), (2, 0, 0)):
            x = mat(rng, t, shape)
            near_one = (0.2 * x + np.eye(shape[-1])).astype(t)
            yield C("MatrixSquareRoot", [near_one], **tol(t))
            if t in (np.complex64, np.complex128):
                yield C("MatrixLogarithm", [near_one], **tol(t))
            if t in (np.complex64, np.complex128) and shape[-1]:  # eigenvalues anywhere
                x += 0.3j * np.eye(shape[-1]).astype(t)
                yield C("MatrixSquareRoot", [x], **tol(t))
                yield C("MatrixLogarithm", [x], **tol(t))
            else:
                yield C("MatrixSquareRoot", [(x + x.swapaxes(-1, -2)).astype(t)], **tol(t))  # some are negative: there is no real root
            for o in (tf.int32, tf.int64):
                yield C("Lu", [x], output_idx_type=o, **tol(t))
        for op in ("MatrixSquareRoot", "Lu"):
            yield C(op, [mat(rng, t, (3,))])
            yield C(op, [mat(rng, t, (3, 2))])
        yield C("Lu", [np.zeros((2, 2), t)])
    for t in (np.float32, np.float64):
        for shape in ((1, 1), (4, 4), (2, 3, 3)):
            l = np.linalg.cholesky(positive(rng, np.float64, shape)).astype(t)
            yield C("CholeskyGrad", [l, mat(rng, t, shape)], tol=2e-2 if t is np.float32 else 1e-7, atol=2e-2 if t is np.float32 else 1e-7)
        yield C("CholeskyGrad", [mat(rng, t, (2, 2)), mat(rng, t, (3, 3))])
        yield C("CholeskyGrad", [mat(rng, t, (2, 3)), mat(rng, t, (2, 3))])


def cases_tridiagonal(rng, quick):
    for t in TYPES:
        for lead in ((), (2,)):
            for m in (1, 2, 3, 7):
                for n in (1, 3):
                    d = [mat(rng, t, lead + (1, m)) for _ in range(3)]
                    x = mat(rng, t, lead + (m, n))
                    yield C("TridiagonalMatMul", d + [x], **tol(t))
                    a = np.concatenate(d, -2)
                    dominant = a.copy()
                    dominant[..., 1, :] += 6
                    yield C("TridiagonalSolve", [dominant, x], partial_pivoting=False, **tol(t))
                    yield C("TridiagonalSolve", [dominant, x], **tol(t))
                    swapped = dominant.copy()
                    swapped[..., 1, : m // 2] = 0
                    swapped[..., 0, :] += 3
                    swapped[..., 2, :] -= 3
                    if m > 1:
                        yield C("TridiagonalSolve", [swapped, x], **tol(t))
        if t in (np.float32, np.float64):  # complex: TensorFlow says 0, we say that it is no number
            yield C("TridiagonalSolve", [np.zeros((3, 3), t), mat(rng, t, (3, 1))])
            yield C("TridiagonalSolve", [np.zeros((3, 3), t), mat(rng, t, (3, 1))], partial_pivoting=False)
        yield C("TridiagonalSolve", [mat(rng, t, (3, 4)), mat(rng, t, (3, 1))])
        yield C("TridiagonalSolve", [mat(rng, t, (2, 3)), mat(rng, t, (3, 1))])
        yield C("TridiagonalMatMul", [mat(rng, t, (1, 3))] * 3 + [mat(rng, t, (4, 2))])


def cases_old_names(rng, quick):
    """What old graphs call the ops, and those that only they have; TensorFlow runs them in such graphs (kernels.py, run_old)."""
    def in_one(x, t):
        of_pair = eig_check(x, t)
        return lambda want, got: "shapes" if want[0].shape != got[0].shape else of_pair([want[0][..., 0, :], want[0][..., 1:, :]], [got[0][..., 0, :], got[0][..., 1:, :]])

    for t in (np.float32, np.float64):
        for shape in ((3, 3), (2, 4, 4), (1, 1), (0, 3, 3), (2, 0, 0), (2, 3), (3,)):
            x = mat(rng, t, shape)
            square = len(shape) > 1 and shape[-1] == shape[-2]
            p = positive(rng, t, shape) if square and shape[-1] else x
            yield C("BatchCholesky", [p], **tol(t))
            yield C("BatchMatrixDeterminant", [x], **tol(t))
            yield C("BatchMatrixInverse", [p], adjoint=True, **tol(t))
            for op in ("SelfAdjointEig", "BatchSelfAdjointEig"):
                yield C(op, [x], check=in_one(x, t) if square else None)
            yield C("BatchSelfAdjointEigV2", [x], check=eig_check(x, t) if square else None)
            yield C("BatchSelfAdjointEigV2", [x], compute_v=False, check=eig_check(x, t) if square else None)
            if len(shape) > 1 and shape[-1]:
                b = mat(rng, t, shape[:-1] + (2,))
                yield C("BatchMatrixSolve", [p, b], **tol(t))
                yield C("BatchMatrixTriangularSolve", [p, b], lower=False, **tol(t))
                yield C("BatchMatrixSolveLs", [p, b, np.float64(0.1)], **tol(t))
                yield C("BatchSvd", [x], check=svd_check(x, False, t))
                yield C("BatchSvd", [x], full_matrices=True, check=svd_check(x, True, t))
            if square:
                low = np.tril(p) + 3 * np.eye(shape[-1], dtype=t)
                yield C("BatchCholeskyGrad", [low, mat(rng, t, shape)], **tol(t))
            yield C("BatchCholeskyGrad", [p, mat(rng, t, (4, 4))], **tol(t))
    for t in (np.complex64, np.complex128):
        x = mat(rng, t, (2, 3, 3))
        yield C("BatchMatrixDeterminant", [x], **tol(t))
        yield C("BatchSvd", [x], check=svd_check(x, False, t))
    for t in (np.float32, np.float16, np.int32, np.uint64, np.complex64):
        x = (rng.rand(2, 3, 4) * 9).astype(t)
        yield C("BatchMatrixDiag", [x])
        yield C("BatchMatrixDiagPart", [x])
        yield C("BatchMatrixSetDiag", [x, x[:, :, 1]])
        yield C("BatchMatrixSetDiag", [x, x[:, :2, 1]])
        for lower, upper in ((1, 0), (-1, 1), (0, -1), (9, 0), (0, 9)):
            yield C("BatchMatrixBandPart", [x, np.int64(lower), np.int64(upper)])
    for op in ("BatchMatrixDiag", "BatchMatrixDiagPart", "BatchMatrixSetDiag", "BatchMatrixBandPart"):
        for x in (np.float32(1), np.float32([1, 2])):
            yield C(op, [x] + {"BatchMatrixSetDiag": [np.float32(3)], "BatchMatrixBandPart": [np.int64(0), np.int64(0)]}.get(op, []))


def cases_exponential(rng, quick):
    for t in TYPES:
        for scale in (1e-3, 0.1, 1, 4):
            for shape in ((1, 1), (2, 2), (5, 5), (2, 3, 3)):
                yield C("MatrixExponential", [(mat(rng, t, shape) * scale).astype(t)], **tol(t))
        yield C("MatrixExponential", [np.zeros((3, 3), t)])
        yield C("MatrixExponential", [np.array([[0, 1], [0, 0]], t)])
        yield C("MatrixExponential", [np.array([[0, -3], [3, 0]], t)], **tol(t))
        for shape in ((2, 0, 0), (0, 2, 2), (3,), (2, 3)):
            yield C("MatrixExponential", [mat(rng, t, shape)])


def cases_debug_identity(rng, quick):
    for t in (np.float32, np.float16, np.int64, np.bool_, np.complex64):
        yield C("DebugGradientIdentity", [rng.rand(2, 3).astype(t)])
