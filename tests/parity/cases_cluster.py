"""Clustering: k-means++ and k-MC2 (the same random numbers), nearest centers."""
import numpy as np

from cases_data import i64
from kernels import Case as C


def grid(rng, n, dim, high=9):
    """Whole numbers: distances are exact, whatever the order of the sums."""
    return rng.randint(-high, high + 1, (n, dim)).astype(np.float32)


def cases_kmeans(rng, quick):
    for n, dim in ((1, 1), (2, 3), (7, 2), (30, 5), (200, 17), (1000, 3)):
        x = grid(rng, n, dim, 100)
        for k in {1, 2, min(n, 5), n if n < 50 else 20}:
            for retries in (-1, 0, 1, 4):
                yield C("KmeansPlusPlusInitialization", [x, i64(k), i64(rng.randint(-5, 2 ** 40)), i64(retries)])
    same = np.ones((6, 2), np.float32)
    yield C("KmeansPlusPlusInitialization", [same, i64(1), i64(3), i64(2)])
    x = grid(rng, 4, 2)
    for bad in ([x, i64(0), i64(1), i64(0)], [x, i64(5), i64(1), i64(0)], [x, i64(-1), i64(1), i64(0)], [x[:0], i64(1), i64(1), i64(0)], [x[0], i64(1), i64(1), i64(0)], [x, i64([1]), i64(1), i64(0)],
                [x, i64(1), i64([1]), i64(0)], [x, i64(1), i64(1), i64([0])]):
        yield C("KmeansPlusPlusInitialization", bad)


def cases_kmc2(rng, quick):
    for n in (1, 2, 3, 10, 1000):
        for seed in (0, 1, -7, 2 ** 40):
            yield C("KMC2ChainInitialization", [rng.uniform(0, 5, n).astype(np.float32), i64(seed)])
    yield C("KMC2ChainInitialization", [np.zeros(5, np.float32), i64(1)])
    yield C("KMC2ChainInitialization", [np.zeros(0, np.float32), i64(1)])
    yield C("KMC2ChainInitialization", [np.zeros((1, 1), np.float32), i64(1)])
    yield C("KMC2ChainInitialization", [np.zeros(3, np.float32), i64([1])])


def cases_nearest(rng, quick):
    for n, m, dim in ((1, 1, 1), (5, 3, 2), (70, 9, 4), (130, 40, 17), (9, 2500, 3), (300, 1024, 2), (300, 1025, 2), (3, 0, 2)):
        x, c = grid(rng, n, dim), grid(rng, m, dim)
        for k in {0, 1, 2, 5, min(m, 60), m + 3 if m < 100 else 7}:
            yield C("NearestNeighbors", [x, c, i64(k)])
    for k in (1, 3):
        yield C("NearestNeighbors", [rng.standard_normal((50, 8)).astype(np.float32), rng.standard_normal((20, 8)).astype(np.float32), i64(k)], tol=1e-4, atol=1e-5)
        yield C("NearestNeighbors", [np.zeros((4, 0), np.float32), np.zeros((3, 0), np.float32), i64(k)])
    x, c = grid(rng, 4, 2), grid(rng, 3, 2)
    for bad in ([x[:0], c, i64(1)], [x, c[:, :1], i64(1)], [x[0], c, i64(1)], [x, c[0], i64(1)], [x, c, i64([1])]):
        yield C("NearestNeighbors", bad)
    yield C("NearestNeighbors", [x, c, i64(-1)], code=3, like=lambda: None)
