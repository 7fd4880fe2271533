"""Matrix products and small neural network kernels."""
import numpy as np
import tensorflow as tf

from cases_array import i32
from cases_math import BF16, CPLX, FLOATS, INTS, NUM, REAL, rand
from kernels import Case as C

TOL = {np.float32: 1e-5, np.float64: 1e-11, np.float16: 1e-2, BF16: 5e-2, np.complex64: 1e-4, np.complex128: 1e-10}
ATOL = {np.float32: 2e-5, np.float64: 1e-12, np.float16: 0.15, BF16: 0.3, np.complex64: 1e-4, np.complex128: 1e-11}


def cases_matmul(rng, quick):
    sizes = [(1, 1, 1), (2, 3, 4), (5, 1, 7), (1, 6, 5), (7, 5, 1), (0, 3, 2), (2, 0, 3), (3, 2, 0), (17, 33, 19), (70, 300, 50)]
    for t in FLOATS + [np.int32, np.int64] + CPLX:
        for m, k, n in sizes:
            for ta in (False, True):
                for tb in (False, True):
                    a = rand(rng, t, (k, m) if ta else (m, k), -1, 1)
                    b = rand(rng, t, (n, k) if tb else (k, n), -1, 1)
                    yield C("MatMul", [a, b], transpose_a=ta, transpose_b=tb, tol=TOL.get(t), atol=ATOL.get(t, 0))
    if not quick:
        for m, k, n in ((200, 700, 1100), (1, 1000, 1000), (1000, 1000, 1), (100, 257, 1025)):
            for t in (np.float32, np.float64):
                yield C("MatMul", [rand(rng, t, (m, k), -1, 1), rand(rng, t, (k, n), -1, 1)], tol=1e-4, atol=1e-4)
    for a, b in (((2, 3), (4, 5)), ((2,), (2, 3)), ((2, 3, 4), (4, 5))):
        yield C("MatMul", [rand(rng, np.float32, a), rand(rng, np.float32, b)], code=3)
    for t in FLOATS + [np.int32, np.int64] + CPLX:
        for la, lb in (((), ()), ((3,), (3,)), ((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((0,), (0,))):
            for ta in (False, True):
                for tb in (False, True):
                    a = rand(rng, t, la + ((3, 2) if ta else (2, 3)), -1, 1)
                    b = rand(rng, t, lb + ((4, 3) if tb else (3, 4)), -1, 1)
                    yield C("BatchMatMulV2", [a, b], adj_x=ta, adj_y=tb, tol=TOL.get(t), atol=ATOL.get(t, 0))
                    if la == lb:
                        yield C("BatchMatMul", [a, b], adj_x=ta, adj_y=tb, tol=TOL.get(t), atol=ATOL.get(t, 0))
    yield C("BatchMatMulV2", [rand(rng, np.float32, (2, 3)), rand(rng, np.float32, (2, 3))])
    yield C("BatchMatMulV2", [rand(rng, np.float32, (2, 2, 3)), rand(rng, np.float32, (3, 3, 2))])
    for f in (["BiasAdd"], ["BiasAdd", "Relu"], ["BiasAdd", "Relu6"], ["BiasAdd", "Elu"], ["BiasAdd", "LeakyRelu"], ["BiasAdd", "Tanh"], ["BiasAdd", "Sigmoid"]):
        for ta in (False, True):
            a, b = rand(rng, np.float32, (4, 5) if ta else (5, 4)), rand(rng, np.float32, (4, 30))
            bias = rand(rng, np.float32, (30,))
            yield C("_FusedMatMul", [a, b, [bias]], fused_ops=f, transpose_a=ta, num_args=1, epsilon=0.0, tol=1e-5, atol=1e-5,
                    like=(lambda a=a, b=b, ta=ta, bias=bias, f=f: [getattr(tf.nn, f[1].lower())(tf.linalg.matmul(a, b, transpose_a=ta) + bias).numpy()]) if f[1:] in (["Tanh"], ["Sigmoid"]) else None)


def cases_bias(rng, quick):
    for t in NUM:
        atol = {np.float16: 0.1, BF16: 1.0}.get(t, 1e-5)
        for shape in ((3, 4), (2, 3, 4), (2, 3, 4, 5), (0, 3), (200, 3), (2, 2, 3, 2, 3)):
            yield C("BiasAdd", [rand(rng, t, shape), rand(rng, t, shape[-1:])])
            yield C("BiasAddV1", [rand(rng, t, shape), rand(rng, t, shape[-1:])])
            yield C("BiasAddGrad", [rand(rng, t, shape)], atol=atol, tol=2e-2 if t in (BF16, np.float16) else 1e-5)
        for shape in ((2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 2, 3)):
            yield C("BiasAdd", [rand(rng, t, shape), rand(rng, t, shape[1:2])], data_format="NCHW")
            yield C("BiasAddGrad", [rand(rng, t, shape)], data_format="NCHW", atol=atol, tol=2e-2 if t in (BF16, np.float16) else 1e-5)
    yield C("BiasAdd", [rand(rng, np.float32, (3, 4)), rand(rng, np.float32, (3,))])
    yield C("BiasAdd", [rand(rng, np.float32, (3,)), rand(rng, np.float32, (3,))])
    yield C("BiasAdd", [rand(rng, np.float32, (3, 4)), rand(rng, np.float32, (1, 4))])
    yield C("BiasAddGrad", [rand(rng, np.float32, (3,))])


def cases_softmax(rng, quick):
    for t in FLOATS:
        tol, atol = TOL[t], {np.float16: 2e-3, BF16: 1.6e-2}.get(t, 1e-6)
        for shape in ((5,), (3, 4), (2, 3, 40), (3, 300), (0, 3), (2, 1)):
            for op in ("Softmax", "LogSoftmax"):
                yield C(op, [rand(rng, t, shape)], tol=tol, atol=atol * (4 if op == "LogSoftmax" else 1))
        for n, c in ((4, 3), (1, 1), (5, 100), (0, 3)):
            x = rand(rng, t, (n, c))
            p = np.exp(rand(rng, np.float64, (n, c)))
            p = (p / p.sum(-1, keepdims=True)).astype(t)
            yield C("SoftmaxCrossEntropyWithLogits", [x, p], tol=tol, atol=atol * 10)
            if n:
                yield C("SoftmaxCrossEntropyWithLogits", [x, p[:1]], tol=tol, atol=atol * 10)
                yield C("SoftmaxCrossEntropyWithLogits", [x[:1], p], tol=tol, atol=atol * 10)
            for lt in (np.int32, np.int64):
                yield C("SparseSoftmaxCrossEntropyWithLogits", [x, rand(rng, lt, (n,), 0, c - 1)], tol=tol, atol=atol * 10)
    x = rand(rng, np.float32, (3, 4))
    yield C("Softmax", [np.array([[1000, 1000, -1000], [np.inf, 0, 0], [np.nan, 0, 1], [-np.inf, -np.inf, 0]], np.float32)])
    yield C("Softmax", [np.float32(1)])
    yield C("SoftmaxCrossEntropyWithLogits", [x, rand(rng, np.float32, (3, 5))])
    yield C("SoftmaxCrossEntropyWithLogits", [rand(rng, np.float32, (3,)), rand(rng, np.float32, (3,))])
    for l in ([0, 1], [0, 1, 4], [0, 1, -1], [[0, 1, 2]]):
        yield C("SparseSoftmaxCrossEntropyWithLogits", [x, np.array(l, np.int64)])


def cases_topk(rng, quick):
    for t in REAL:
        for shape in ((5,), (3, 4), (2, 3, 9), (50,), (0, 3)):
            for k in (0, 1, 3):
                x = rand(rng, t, shape, 0, 4) if t in INTS else rand(rng, t, shape)
                yield C("TopKV2", [x, i32(k)])
    yield C("TopKV2", [rand(rng, np.float32, (3,)), i32(4)])
    yield C("TopKV2", [rand(rng, np.float32, (3,)), i32(-1)])
    yield C("TopKV2", [np.float32(1), i32(1)])
    yield C("TopKV2", [rand(rng, np.float32, (3, 5)), np.array(2, np.int64)], index_type=tf.int64)
    for k in (0, 1, 2, 9):
        for t in (np.int32, np.int64):
            p = rand(rng, np.float32, (6, 4))
            p[1, 2] = np.nan
            p[2, 0] = np.inf
            p[3, 1] = p[3, 0]
            tg = rand(rng, t, (6,), 0, 5)
            yield C("InTopK", [p, tg], k=k)
            yield C("InTopKV2", [p, tg, np.array(k, t)])
    yield C("InTopK", [rand(rng, np.float32, (3, 4)), i32([0, 1])], k=1)


def cases_approx_topk(rng, quick):
    """TensorFlow has it for XLA only, and exact there. Elements differ: which of two equal ones comes first is not said."""
    def case(x, **a):
        @tf.function(jit_compile=True)
        def xla(v):
            return tuple(tf.raw_ops.ApproxTopK(input=v, **a))
        want = [v.numpy() for v in xla(tf.constant(x))]
        return C("ApproxTopK", [x], code=0, check=lambda _, got: None if all(np.array_equal(g, w) for g, w in zip(got, want)) else "%s, not %s" % (got, want), **a)

    numbers = lambda t, *s: rng.permutation(int(np.prod(s))).reshape(s).astype(t)
    for t, s in ((np.float32, (7, 300)), (np.float16, (2, 500)), (tf.bfloat16.as_numpy_dtype, (2, 60))):
        for largest in (False, True):
            for whole in (False, True):
                yield case(numbers(t, *s), k=10, is_max_k=largest, aggregate_to_topk=whole)
    for k, more in ((1, {}), (0, {}), (3, dict(recall_target=1.0)), (3, dict(recall_target=0.5)), (200, {}), (9, dict(reduction_input_size_override=5000))):
        for whole in (False, True):
            if k or whole:
                yield case(numbers(np.float32, 3, 700), k=k, aggregate_to_topk=whole, **more)
    yield case(numbers(np.float32, 3000), k=4, aggregate_to_topk=False)
    for axis in (0, 1, 2, -2):
        yield case(numbers(np.float32, 6, 5, 7), k=3, reduction_dimension=axis)
    yield case(numbers(np.float32, 0, 5), k=3)
    x = numbers(np.float32, 3, 5)
    for a in (dict(k=6), dict(k=2, reduction_dimension=2), dict(k=2, reduction_dimension=-3), dict(k=2, reduction_dimension=2 ** 40), dict(k=2 ** 62), dict(k=2, recall_target=0.0),
              dict(k=2, recall_target=1.5), dict(k=2, recall_target=float("nan"))):
        yield C("ApproxTopK", [x], code=3, **a)
    yield C("ApproxTopK", [x[0, 0]], k=0, code=3)
    yield C("ApproxTopK", [numbers(np.float32, 2, 129)], k=2, aggregate_to_topk=False, reduction_input_size_override=1 << 40, code=3)


def cases_isotonic(rng, quick):
    for t, o in (np.float32, np.float32), (np.float64, np.float64), (np.float16, np.float16), (BF16, BF16), (np.int8, np.float32), (np.int16, np.float32), (np.int32, np.float64), (np.int64, np.float64):
        for shape in ((7,), (3, 10), (2, 3, 5), (0, 4), (3, 0), (1, 1), (4, 200)):
            for hi in (3, 50):
                yield C("IsotonicRegression", [rand(rng, t, shape, -hi, hi)], output_dtype=tf.as_dtype(o), tol=0)
        yield C("IsotonicRegression", [np.arange(10).astype(t)], output_dtype=tf.as_dtype(o), tol=0)
        yield C("IsotonicRegression", [np.arange(10)[::-1].astype(t)], output_dtype=tf.as_dtype(o), tol=0)
