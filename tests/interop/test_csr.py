"""Sparse matrices of compressed rows in variants: what TensorFlow's CPU kernels give, from tensors and back, over the wire too."""
import itertools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops.linalg.sparse import sparse_csr_matrix_ops as csr
from tensorflow.python.ops.linalg.sparse import sparse_csr_matrix_grad  # noqa: F401  registers the gradients

import both

tf1 = tf.compat.v1
TYPES = [np.float32, np.float64, np.complex64, np.complex128]
CLOSE = dict(rtol=1e-5, atol=1e-5)


@pytest.fixture
def target(shared):
    tf1.reset_default_graph()
    return shared.target("worker")


def sparse(shape, t=np.float32, fill=0.4, seed=0):
    """A dense matrix with zeros in it."""
    rng = np.random.RandomState(seed)
    x = rng.uniform(-2, 2, shape) * (rng.rand(*shape) < fill)
    if np.issubdtype(t, np.complexfloating):
        x = x + 1j * rng.uniform(-2, 2, shape) * (x != 0)
    return x.astype(t)


def matrix(x):
    return csr.dense_to_csr_sparse_matrix(x, np.argwhere(x).astype(np.int64))


def parts(m, t, batch=1):
    """All that can be said of a matrix."""
    out = [csr.csr_sparse_matrix_to_dense(m, type=t), csr.sparse_matrix_nnz(m)] + list(csr.csr_sparse_matrix_to_sparse_tensor(m, type=t))
    for i in range(batch):
        out += list(csr.csr_sparse_matrix_components(m, i, type=t))
    return out


def same(target, fetches, feed=None, **kw):
    want, got = both.run("", fetches, feed), both.run(target, fetches, feed)
    assert not isinstance(want[0], both.Failed), want[0]
    both.agree(got, want, **kw)


@pytest.mark.asan
@pytest.mark.parametrize("shape", [(3, 4), (1, 1), (5, 2), (2, 3, 4), (3, 2, 5), (4, 0), (0, 4), (30, 40)], ids=str)
def test_there_and_back(target, shape):
    out = []
    for t in TYPES:
        for fill in 0.4, 0.0, 1.0:
            x = sparse(shape, t, fill)
            where = np.argwhere(x).astype(np.int64)
            batch = shape[0] if len(shape) == 3 else 1
            out += parts(matrix(x), t, batch)
            m = csr.sparse_tensor_to_csr_sparse_matrix(where, x[x != 0], np.array(shape, np.int64))
            out += parts(m, t, batch)
            for conj in False, True:
                out += parts(csr.sparse_matrix_transpose(m, type=t, conjugate=conj), t, batch)
    same(target, out)


def test_empty_matrices_in_a_batch(target):
    x = sparse((5, 3, 4), fill=1.0)
    x[[0, 2, 4]] = 0
    same(target, parts(matrix(x), np.float32, 5) + parts(csr.sparse_matrix_transpose(matrix(x), type=np.float32), np.float32, 5))


TURNS = [dict(zip(("transpose_a", "adjoint_a", "transpose_b", "adjoint_b"), v)) for v in itertools.product((False, True), repeat=4) if not (v[0] and v[1]) and not (v[2] and v[3])]


def factors(turn, lead, t, m=4, k=6, n=5):
    def of(a, b, turned):
        return lead + ((b, a) if turned else (a, b))
    return of(m, k, turn["transpose_a"] or turn["adjoint_a"]), of(k, n, turn["transpose_b"] or turn["adjoint_b"])


@pytest.mark.asan
@pytest.mark.parametrize("lead", [(), (3,)], ids=str)
def test_times_dense(target, lead):
    out = []
    for t in TYPES:
        for turn in TURNS:
            sa, sb = factors(turn, lead, t)
            for ty, cy in itertools.product((False, True), repeat=2):
                out.append(csr.sparse_matrix_mat_mul(matrix(sparse(sa, t)), sparse(sb, t, 1.0, 1), transpose_output=ty, conjugate_output=cy, **turn))
    same(target, out, **CLOSE)


@pytest.mark.asan
@pytest.mark.parametrize("lead", [((), ()), ((3,), (3,)), ((3,), (1,)), ((1,), (3,))], ids=str)
def test_times_sparse(target, lead):
    out = []
    for t in TYPES:
        for turn in TURNS:
            (sa, _), (_, sb) = factors(turn, lead[0], t), factors(turn, lead[1], t)
            y = csr.sparse_matrix_sparse_mat_mul(matrix(sparse(sa, t)), matrix(sparse(sb, t, 0.3, 1)), type=t, **turn)
            out += parts(y, t, max([1] + [d[0] for d in lead if d]))
    same(target, out, **CLOSE)


def test_large(target):
    a, b, d = sparse((700, 500), fill=0.02), sparse((500, 600), fill=0.03, seed=1), sparse((500, 64), fill=1.0, seed=2)
    m = csr.sparse_matrix_sparse_mat_mul(matrix(a), matrix(b), type=np.float32)
    same(target, parts(m, np.float32) + [csr.sparse_matrix_mat_mul(matrix(a), d), csr.sparse_matrix_mat_mul(matrix(a.T.copy()), d, transpose_a=True)], rtol=1e-4, atol=1e-4)


@pytest.mark.asan
def test_places_in_any_order(target):
    """Columns of a row that do not ascend, and places that are named more than once."""
    at = np.array([[0, 2], [0, 0], [0, 2], [1, 1], [3, 2], [3, 1], [3, 0], [3, 1]], np.int64)
    out = []
    for t in TYPES:
        v = sparse((8,), t, 1.0)
        a, b = (csr.sparse_tensor_to_csr_sparse_matrix(at, v, np.array([4, n], np.int64)) for n in (3, 4))
        d = sparse((4, 3), t, 1.0, 1)
        for m in a, csr.dense_to_csr_sparse_matrix(d, at), csr.sparse_matrix_transpose(a, type=t):
            out += parts(m, t)
        out += [csr.sparse_matrix_mat_mul(a, d, transpose_b=True), csr.sparse_matrix_mat_mul(a, d, transpose_a=True)]
        out.append(csr.csr_sparse_matrix_to_dense(csr.sparse_matrix_sparse_mat_mul(a, matrix(sparse((3, 5), t, 1.0, 2)), type=t), type=t))
        out.append(csr.csr_sparse_matrix_to_dense(csr.sparse_matrix_sparse_mat_mul(b, b, type=t), type=t))
    same(target, out, **CLOSE)


def test_long_row(target):
    """More products for one row than are made before somebody looks whether the step is cancelled."""
    out = []
    for t in np.float32, np.complex64:
        v, b = sparse((3000,), t, 1.0), sparse((1, 1 << 14), t, 1.0, 1)
        a = csr.sparse_tensor_to_csr_sparse_matrix(np.zeros((3000, 2), np.int64), v, np.array([1, 1], np.int64))
        out += [csr.sparse_matrix_mat_mul(a, b, transpose_output=o, conjugate_output=o) for o in (False, True)]
    same(target, out, rtol=1e-3, atol=1e-2)


@pytest.mark.asan
def test_conj(target):
    for t in TYPES:
        same(target, parts(tf.raw_ops.Conj(input=matrix(sparse((2, 3, 4), t))), t, 2))


def test_numbers_that_cancel_stay(target):
    a, b = np.array([[1, 1], [0, 2]], np.float32), np.array([[3, 1], [-3, 1]], np.float32)
    same(target, parts(csr.sparse_matrix_sparse_mat_mul(matrix(a), matrix(b), type=np.float32), np.float32))


@pytest.mark.asan
def test_errors(target):
    ph = tf1.placeholder
    i, v, s = ph(tf.int64, [None, 2]), ph(tf.float32, [None]), ph(tf.int64, [2])
    m = csr.sparse_tensor_to_csr_sparse_matrix(i, v, s)
    dense = csr.csr_sparse_matrix_to_dense(m, type=np.float32)
    for at, values, shape in [([[0, 0]], [1], [2, 2]), ([[2, 0]], [1], [2, 2]), ([[0, 2]], [1], [2, 2]), ([[-1, 0]], [1], [2, 2]), ([[0, -1]], [1], [2, 2]), ([[0, 0]], [1, 2], [2, 2]),
                              ([[0, 0]], [1], [1 << 31, 2])]:
        feed = {i: at, v: values, s: shape}
        both.agree(both.run(target, dense, feed), both.run("", dense, feed))
    x = sparse((2, 3))
    n, b = ph(tf.int32, []), ph(tf.float32, [None, None])
    whole = lambda m: csr.csr_sparse_matrix_to_dense(m, type=np.float32)  # noqa: E731
    for f in (csr.csr_sparse_matrix_components(matrix(x), n, type=np.float32), csr.sparse_matrix_mat_mul(matrix(x), b), csr.csr_sparse_matrix_to_dense(matrix(x), type=np.float64),
              csr.sparse_matrix_nnz(csr.sparse_matrix_transpose(matrix(x), type=np.complex64)),
              csr.sparse_matrix_nnz(csr.sparse_matrix_sparse_mat_mul(matrix(x), matrix(x), type=np.float64, transpose_b=True)), whole(csr.dense_to_csr_sparse_matrix(x, i))):
        for feed in {n: 0, b: np.ones((3, 2)), i: [[0, 0]]}, {n: 1, b: np.ones((2, 3)), i: [[0, 3]]}, {n: -1, b: np.ones((3, 2)), i: [[2, 0]]}:
            both.agree(both.run(target, f, feed), both.run("", f, feed), **CLOSE)


@pytest.mark.asan
def test_errors_of_batches(target):
    ph = tf1.placeholder
    at, a, b, d = ph(tf.int64, [None, 3]), ph(tf.int64, [3]), ph(tf.int64, [3]), ph(tf.float32, [None, None, None])
    x, y = (csr.sparse_tensor_to_csr_sparse_matrix(at, tf.ones(tf.shape(at)[:1]), s) for s in (a, b))
    out = [csr.csr_sparse_matrix_components(x, 2, type=tf.float32), csr.sparse_matrix_nnz(x)]
    for turn in {}, dict(transpose_a=True, adjoint_b=True):
        out.append(csr.csr_sparse_matrix_to_dense(csr.sparse_matrix_sparse_mat_mul(x, y, type=tf.float32, **turn), type=tf.float32))
        out.append(csr.sparse_matrix_mat_mul(x, d, **turn))
    for where in [[0, 0, 0]], [[0, 1, 1], [1, 0, 0]]:
        for sa, sb in ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (3, 4, 5)), ((3, 3, 4), (1, 4, 3)), ((1, 3, 4), (2, 4, 3)), ((2, 3, 4), (2, 3, 5)), ((2, 3, 4), (2, 5, 4)), ((2, 3, -4), (2, 4, 5)):
            feed = {at: where, a: sa, b: sb, d: np.ones([abs(n) for n in sb])}
            for f in out:
                both.agree(both.run(target, f, feed), both.run("", f, feed), **CLOSE)


def test_over_the_wire(target):
    """A matrix that one task makes and another uses; its parts come to the client."""
    x = sparse((2, 3, 4))
    with tf.device("/job:ps/task:0"):
        m = matrix(x)
    with tf.device("/job:worker/task:1"):
        t = csr.sparse_matrix_transpose(m, type=np.float32)
    with tf.device("/job:ps/task:1"):
        out = parts(t, np.float32, 2)
    want = np.swapaxes(x, 1, 2)
    with tf1.Session(target) as s:
        np.testing.assert_array_equal(s.run(out)[0], want)


@pytest.mark.parametrize("lead", [(), (2,)], ids=str)
def test_gradients(target, lead):
    """TensorFlow's gradients, which are made of these ops."""
    a, b, c = (tf.constant(sparse(lead + s, np.float32, 0.6, i)) for i, s in enumerate(((3, 4), (4, 5), (5, 2))))
    at = [np.argwhere(sparse(lead + s, np.float32, 0.6, i)).astype(np.int64) for i, s in enumerate(((3, 4), (4, 5)))]
    ma, mb = csr.dense_to_csr_sparse_matrix(a, at[0]), csr.dense_to_csr_sparse_matrix(b, at[1])
    y = csr.sparse_matrix_sparse_mat_mul(ma, mb, type=tf.float32)
    z = csr.sparse_matrix_mat_mul(y, c)
    w = csr.csr_sparse_matrix_to_dense(csr.sparse_matrix_transpose(y, type=tf.float32), type=tf.float32)
    same(target, tf.gradients(tf.reduce_sum(z ** 2), [a, b, c]) + tf.gradients(tf.reduce_sum(w ** 3), [a, b]), **CLOSE)
