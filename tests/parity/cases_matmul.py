"""Matrix products."""
import numpy as np

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
