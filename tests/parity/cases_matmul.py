"""Matrix products."""
import numpy as np
import tensorflow as tf

from cases_math import rand
from kernels import Case as C

TYPES = [np.float32, np.float64, np.int32, np.int64, np.complex64, np.complex128]


def cases_matmul(rng, quick):
    sizes = [(1, 1, 1), (3, 4, 5), (17, 33, 9), (0, 3, 2), (2, 0, 3)] + ([] if quick else [(64, 130, 70), (1, 500, 1)])
    for t in TYPES:
        for m, k, n in sizes:
            for ta in (False, True):
                for tb in (False, True):
                    a = rand(rng, t, (k, m) if ta else (m, k), -3, 3)
                    b = rand(rng, t, (n, k) if tb else (k, n), -3, 3)
                    yield C("MatMul", [a, b], transpose_a=ta, transpose_b=tb, tol=1e-4, atol=1e-4)
    yield C("MatMul", [rand(rng, np.float32, (2, 3), -1, 1), rand(rng, np.float32, (4, 2), -1, 1)])
    yield C("MatMul", [rand(rng, np.float32, (2,), -1, 1), rand(rng, np.float32, (2, 2), -1, 1)])
    for t in TYPES[:3] + TYPES[4:]:
        for x, y in (((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((3, 4), (4, 2)), ((0, 3, 4), (0, 4, 5))):
            yield C("BatchMatMulV2", [rand(rng, t, x, -3, 3), rand(rng, t, y, -3, 3)], adj_x=False, adj_y=False, tol=1e-4, atol=1e-4)
        yield C("BatchMatMul", [rand(rng, t, (2, 4, 3), -3, 3), rand(rng, t, (2, 5, 4), -3, 3)], adj_x=True, adj_y=True, tol=1e-4, atol=1e-4)
    for t in TYPES:
        for x, y in (((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((40, 5, 6), (1, 6, 7)), ((2, 3, 0), (2, 0, 5))):
            yield C("BatchMatMulV3", [rand(rng, t, x, -3, 3), rand(rng, t, y, -3, 3)], Tout=tf.as_dtype(t), tol=1e-4, atol=1e-4)
    for x, y in (((40, 20, 30), (40, 30, 10)), ((9, 70, 60), (9, 60, 80))):
        yield C("BatchMatMulV2", [rand(rng, np.float32, x, -1, 1), rand(rng, np.float32, y, -1, 1)], tol=1e-5, atol=1e-5)
    for ta in (np.int8, np.uint8):
        for tb in (np.int8, np.uint8):
            yield C("BatchMatMulV3", [rand(rng, ta, (2, 3, 4), -100, 100), rand(rng, tb, (2, 4, 5), -100, 100)], Tout=tf.int32)
    half = tf.bfloat16.as_numpy_dtype
    for t in (np.int8, np.uint8):
        bytes_, halves = rand(rng, t, (2, 4, 3), 0, 100), rand(rng, np.float32, (2, 5, 4), -3, 3).astype(half)
        yield C("BatchMatMulV3", [bytes_, halves], Tout=tf.bfloat16, adj_x=True, adj_y=True, tol=2e-2, atol=1)
        yield C("BatchMatMulV3", [halves, bytes_], Tout=tf.bfloat16, tol=2e-2, atol=1)
        yield C("BatchMatMulV3", [halves, np.zeros((2, 4, 0), t)], Tout=tf.bfloat16)
