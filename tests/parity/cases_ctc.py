"""Connectionist temporal classification and edit distance."""
import numpy as np

from cases_math import rand
from cases_sparse import i64, sparse
from kernels import Case as C


def cases_ctc(rng, quick):
    for t in (np.float32, np.float64):
        tol = dict(tol=1e-4, atol=1e-4) if t is np.float32 else dict(tol=1e-5, atol=1e-5)  # TensorFlow adds logarithms in float
        for T, B, K, n in ((5, 3, 4, 2), (9, 2, 6, 4), (1, 1, 3, 1), (7, 4, 3, 3)):
            x = rand(rng, t, (T, B, K), -3, 3)
            for lens in (np.full(B, T), rng.randint(n, T + 1, B), np.full(B, 1), np.full(B, T + 1), np.zeros(B)):
                ix = [[b, i] for b in range(B) for i in range(rng.randint(1 if T != 7 else 0, n + 1))]
                v = rng.randint(0, K - 1, len(ix))
                labels = [np.array(ix, np.int64).reshape(-1, 2), v.astype(np.int32)]
                lens = lens.astype(np.int32)
                for collapse in (False, True):
                    for merge in (False, True):
                        for longer in (False, True):
                            yield C("CTCLoss", [x] + labels + [lens], preprocess_collapse_repeated=collapse, ctc_merge_repeated=merge, ignore_longer_outputs_than_inputs=longer, **tol)
                for merge in (False, True):
                    for blank in (-1, 0, K - 1, K, -K - 1):
                        yield C("CTCGreedyDecoder", [x, lens], merge_repeated=merge, blank_index=blank, **tol)
        for T, B, K in ((5, 3, 4), (12, 2, 6), (1, 1, 3), (20, 4, 3), (3, 2, 1), (6, 1, 30)):
            x = rand(rng, t, (T, B, K), -3, 3)
            for lens in (np.full(B, T), rng.randint(0, T + 1, B), np.full(B, T + 1), np.full(B, -1), np.full(B + 1, T)):
                for width, paths in ((1, 1), (4, 1), (4, 3), (100, 2), (3, 4)):
                    for merge in (False, True):
                        yield C("CTCBeamSearchDecoder", [x, lens.astype(np.int32)], beam_width=width, top_paths=paths, merge_repeated=merge, **tol)
        yield C("CTCGreedyDecoder", [rand(rng, t, (4, 2, 3)), np.array([4], np.int32)])
        yield C("CTCBeamSearchDecoder", [rand(rng, t, (4, 3)), np.array([4], np.int32)], beam_width=2, top_paths=1)
        yield C("CTCBeamSearchDecoder", [rand(rng, t, (0, 2, 3)), np.array([0, 0], np.int32)], beam_width=2, top_paths=1)
        yield C("CTCBeamSearchDecoder", [rand(rng, t, (4, 0, 3)), np.zeros(0, np.int32)], beam_width=2, top_paths=1)
        one = [np.array([[0, 0], [0, 1]], np.int64)]
        for v in ([1, 2], [2, 1], [0, 0], [-1, 0]):
            yield C("CTCLoss", [rand(rng, t, (4, 1, 3))] + one + [np.array(v, np.int32), np.array([4], np.int32)], **tol)
        yield C("CTCLoss", [rand(rng, t, (4, 1, 3)), i64([[1, 0]]), np.array([0], np.int32), np.array([4], np.int32)])
        yield C("CTCLoss", [rand(rng, t, (4, 1)), i64([[0, 0]]), np.array([0], np.int32), np.array([4], np.int32)])
        yield C("CTCLoss", [rand(rng, t, (4, 2, 3)), i64([[0, 0]]), np.array([0], np.int32), np.array([4], np.int32)])


def cases_edit_distance(rng, quick):
    for t in (np.int64, np.float32, object):
        for shape, n, m in (((3, 5), 8, 9), ((2, 2, 4), 7, 6), ((3, 5), 0, 4), ((3, 5), 4, 0), ((4,), 2, 2), ((0, 3), 0, 0)):
            a, b = sparse(rng, np.int64, shape, n), sparse(rng, np.int64, shape, m)
            for s in (a, b):
                s[1] = np.array([b"v%d" % (x % 3) for x in s[1]], object) if t is object else (s[1] % 3).astype(t)
            for norm in (False, True):
                yield C("EditDistance", a + b, normalize=norm)
    yield C("EditDistance", sparse(rng, np.int64, (3, 5), 4) + sparse(rng, np.int64, (3, 5, 2), 4))
    yield C("EditDistance", sparse(rng, np.int64, (3, 5), 4) + sparse(rng, np.int64, (5, 2), 4))
