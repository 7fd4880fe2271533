"""Random numbers: not close, equal. Seeds never repeat, because TensorFlow keeps a stateful op's generator from one eager call to the next."""
import itertools

import numpy as np
import tensorflow as tf

from cases_math import BF16, rand
from kernels import Case as C

SHAPES = ((), (1,), (5,), (7, 3), (129,), (33, 33))
FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
INTS = (tf.int32, tf.int64)
_seeds = itertools.count(1)


def shape(s, dtype=np.int32):
    return np.array(s, dtype)


def seeds():
    return {"seed": next(_seeds), "seed2": 1 << 33 | next(_seeds)}


def cases_stateful(rng, quick):
    for s in SHAPES[2:4] if quick else SHAPES:
        for dtype in FLOATS:
            for op in ("RandomUniform", "RandomStandardNormal", "TruncatedNormal"):
                yield C(op, [shape(s)], dtype=dtype, tol=0, **seeds())
        for dtype in INTS:
            lo, hi = (np.array(v, dtype.as_numpy_dtype) for v in (-7, 1000))
            yield C("RandomUniformInt", [shape(s), lo, hi], tol=0, **seeds())
            yield C("RandomUniformInt", [shape(s), hi, lo], tol=0, **seeds())
        yield C("RandomShuffle", [rand(rng, np.float32, s)], tol=0, **seeds())
        alpha = np.array([0.1, 0.5, 1, 1.5, 40])
        yield C("RandomGamma", [shape(s), alpha], tol=1e-14, **seeds())
        yield C("RandomPoissonV2", [shape(s), alpha * 3], dtype=tf.int64, tol=0, **seeds())
        yield C("RandomPoissonV2", [shape(s), alpha.astype(np.float32)], dtype=tf.float32, tol=0, **seeds())
    for dtype in (np.float32, np.float64):
        one = [np.array(v, dtype) for v in (0.5, 1.5)]
        for lo, hi in ((-2, 2), (3, np.inf), (-np.inf, -3), (1, 1.25), (2, 1)):
            yield C("ParameterizedTruncatedNormal", [shape((90,)), *one, np.array(lo, dtype), np.array(hi, dtype)], tol=0, **seeds())
    for b, c, n in ((1, 3, 10), (5, 10, 7)):
        yield C("Multinomial", [rand(rng, np.float32, (b, c)), np.int32(n)], tol=0, **seeds())
    yield C("Multinomial", [rand(rng, np.float32, (3,)), np.int32(2)], **seeds())
    yield C("RandomUniform", [shape((-1,))], dtype=tf.float32, **seeds())


def cases_stateless(rng, quick):
    for s in SHAPES[2:4] if quick else SHAPES:
        seed = rng.randint(-(1 << 40), 1 << 40, 2, dtype=np.int64)
        key = rng.randint(0, 1 << 62, 1, dtype=np.int64).astype(np.uint64)
        counter = rng.randint(0, 1 << 62, 2, dtype=np.int64).astype(np.uint64)
        for dtype in FLOATS:
            for op in ("StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal"):
                yield C(op, [shape(s), seed], dtype=dtype, tol=0)
                yield C(op + "V2", [shape(s, np.int64), key, counter, np.int32(1)], dtype=dtype, tol=0)
        for dtype in INTS:
            lo, hi = (np.array(v, dtype.as_numpy_dtype) for v in (-7, 1000))
            yield C("StatelessRandomUniformInt", [shape(s), seed, lo, hi], tol=0)
            yield C("StatelessRandomUniformIntV2", [shape(s), key, counter, np.int32(3), lo, hi], tol=0)
        for dtype in (tf.int32, tf.int64, tf.uint32, tf.uint64):
            yield C("StatelessRandomUniformFullInt", [shape(s), seed], dtype=dtype, tol=0)
            yield C("StatelessRandomUniformFullIntV2", [shape(s), key, counter, np.int32(1)], dtype=dtype, tol=0)
        for t in (np.float32, np.int64, np.bool_):
            yield C("StatelessShuffle", [rand(rng, t, s), key, counter, np.int32(1)])
        for op in ("StatelessRandomGetKeyCounter", "StatelessRandomGetKeyCounterAlg"):
            yield C(op, [seed])
        yield C("StatelessMultinomial", [rand(rng, np.float64, (4, 6)), np.int32(9), seed], tol=0)
    yield C("StatelessShuffle", [np.array([b"a", b"bc", b"", b"d"], object), key, counter, np.int32(3)])
    yield C("StatelessShuffle", [np.arange(4), key, counter, np.int32(7)])
    yield C("StatelessRandomGetAlg", [])
    yield C("StatelessRandomUniform", [shape((3,)), np.array([1, 2, 3])], dtype=tf.float32)
    # A counter about to run over, and an algorithm that is not there.
    full = np.array([(1 << 64) - 3, 5], np.uint64)
    yield C("StatelessRandomUniformFullIntV2", [shape((400,)), np.array([9], np.uint64), full, np.int32(1)], dtype=tf.uint32, tol=0)
    yield C("StatelessRandomUniformV2", [shape((3,)), np.array([9], np.uint64), full, np.int32(7)], dtype=tf.float32)


def cases_distributions(rng, quick):
    seed, key, counter = np.array([5, -6]), np.array([7], np.uint64), np.array([8, 9], np.uint64)
    for s in ((5,), (4, 5), (300, 5), (0, 5), (5, 4), ()):
        alpha = np.array([0.1, 0.5, 1, 1.5, 40])
        for t, tol in ((np.float16, 2e-3), (np.float32, 2e-7), (np.float64, 1e-14)):
            yield C("StatelessRandomGammaV2", [shape(s), seed, alpha.astype(t)], tol=tol)
            yield C("StatelessRandomGammaV3", [shape(s, np.int64), key, counter, np.int32(1), alpha.astype(t)], tol=tol)
            for o in (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64):
                yield C("StatelessRandomPoisson", [shape(s), seed, (alpha * 3).astype(t)], dtype=o, tol=0)
                for n in (1, 7, 400):
                    yield C("StatelessRandomBinomial", [shape(s), seed, np.array(n, t), np.array([0.01, 0.3, 0.5, 0.8, 1], t)], dtype=o, tol=0)
        yield C("StatelessRandomPoisson", [shape(s), seed, np.array([1, 2, 30, 4, 5])], dtype=tf.int64, tol=0)
    for t in (np.float32, np.float64):  # few enough for TensorFlow to have one thread do it
        for lo, hi in ((-2, 2), (3, np.inf), (-np.inf, -3), (1, 1.25), (2, 1), (-np.inf, np.inf)):
            for s in ((30,), (0,), ()):
                yield C("StatelessParameterizedTruncatedNormal", [shape(s), seed, *(np.array(v, t) for v in (0.5, 1.5, lo, hi))], tol=0)
        each = [np.array([[0.0], [3.0]], t), np.array([1, 2, 0.5], t), np.array(-1, t), np.array([2, np.inf, 4], t)]
        for s in ((2, 3), (6, 2, 3), (2, 2, 2, 3), (0, 2, 3), (3, 2), (3,)):
            yield C("StatelessParameterizedTruncatedNormal", [shape(s, np.int64), seed, *each], tol=0)
        yield C("StatelessParameterizedTruncatedNormal", [shape((2, 3)), np.array([1, 2, 3]), *each], tol=0)
        yield C("StatelessParameterizedTruncatedNormal", [shape((2, 3)), seed, *each[:3], np.array([1, 2], t)], tol=0)
        yield C("StatelessParameterizedTruncatedNormal", [shape((3,)), seed, np.array(0, t), np.array([1, -1, 1], t), np.array(0, t), np.array(1, t)], tol=0)
    counts, probs = np.array([[10.0], [200.0], [-3.0]]), np.array([0, 0.2, 0.7, 1.5])
    yield C("StatelessRandomBinomial", [shape((50, 3, 4)), seed, counts, probs], dtype=tf.int64, tol=0)
    yield C("StatelessRandomBinomial", [shape((50, 3, 4), np.int64), np.array([5, 6], np.int32), probs, counts], dtype=tf.float64, tol=0)
    yield C("StatelessRandomBinomial", [shape((3, 5)), seed, counts, probs], dtype=tf.int64)
    yield C("StatelessRandomBinomial", [shape((4,)), np.array([1, 2, 3]), np.array(2.0), probs], dtype=tf.int64)
    yield C("StatelessRandomBinomial", [shape((4,)), seed, np.ones(3), probs], dtype=tf.int64)
    yield C("StatelessRandomGammaV3", [shape((5,)), key, counter, np.int32(9), np.ones(5)])


def cases_index_shuffle(rng, quick):
    for t in (np.int32, np.int64, np.uint32, np.uint64):
        for most in (1, 2, 3, 100, 65535, 65536, 1000000, 2**31 - 1) + ((2**40, 2**62) if np.dtype(t).itemsize == 8 else ()):
            for st in (np.int32, np.int64, np.uint32, np.uint64):
                seed = rng.randint(0, 1 << 31, 3).astype(st)
                yield C("RandomIndexShuffle", [np.array(most // 2, t), seed, np.array(most, t)])
            index = (rng.randint(0, 1 << 31, 7) % (most + 1)).astype(t)
            yield C("RandomIndexShuffle", [index, seed, np.array(most, t)], rounds=8)
            yield C("RandomIndexShuffle", [index, rng.randint(-9, 9, (7, 3)), np.full(7, most, t)])
    ix, seed = np.arange(5), np.arange(3)
    yield C("RandomIndexShuffle", [ix, np.arange(4), np.array(9)])
    yield C("RandomIndexShuffle", [ix, np.ones((4, 3), np.int64), np.array(9)])
    yield C("RandomIndexShuffle", [ix, seed, np.array([9, 9])])
    yield C("RandomIndexShuffle", [ix.reshape(5, 1), seed, np.array(9)])


def cases_stochastic_cast(rng, quick):
    key, counter, alg = np.array([77], np.uint64), np.array([5, 9], np.uint64), np.int32(1)
    for t in (np.float32, np.float64, np.float16, BF16):
        for to in (tf.int8, tf.int16, tf.int32):
            for n in list(range(20)) + [37, 203]:
                yield C("StochasticCastToInt", [rng.uniform(-20, 20, n).astype(t), key, counter, alg], Tout=to)
            whole = rng.randint(-9, 9, 40) + (rng.rand(40) < 0.3) * rng.rand(40)
            yield C("StochasticCastToInt", [whole.astype(t), key, counter, alg], Tout=to)
            edge = np.array([np.nan, np.inf, -np.inf, 127, 127.4, -128, -128.5, 126.5, 32767, -32768, 1e5, -1e5, 2.0 ** 31, -2.0 ** 31, 0.5, -0.5, 0, -0.0, 1e-6, -1e-6])
            with np.errstate(over="ignore"):
                edge = edge.astype(t)
            yield C("StochasticCastToInt", [edge, key, counter, alg], Tout=to)
        x = np.ones((2, 3), t)
        yield C("StochasticCastToInt", [x, key, counter, np.int32(3)], Tout=tf.int8)
        yield C("StochasticCastToInt", [x, key, counter, np.int32(2)], Tout=tf.int8)
        yield C("StochasticCastToInt", [x, key[0], counter, alg], Tout=tf.int8)
        yield C("StochasticCastToInt", [x, counter, counter, alg], Tout=tf.int8)
        yield C("StochasticCastToInt", [x, key, counter, alg.reshape(1)], Tout=tf.int8)
        yield C("StochasticCastToInt", [x[:0], key, counter, alg], Tout=tf.int8)
        for n in range(4):
            for a in (1, 3):
                yield C("StochasticCastToInt", [x * 1.5, key, np.arange(5, 5 + n, dtype=np.uint64), np.int32(a)], Tout=tf.int8)


def cases_sobol(rng, quick):
    i = np.int32
    for t in (tf.float32, tf.float64):
        for dim, n, skip in ((1, 1, 0), (1, 100, 0), (2, 7, 5), (5, 33, 1), (21, 1000, 12345), (1111, 40, 3), (1111, 2, 2 ** 29), (3, 5, 2 ** 30 - 8), (0, 1, 0), (-1, 1, 0), (1, 0, 0),
                             (1, -1, 0), (2, 3, -1), (1, 5, 2 ** 31 - 4), (1000, 2 ** 30, 0), (21201, 1, 0)):
            yield C("SobolSample", [i(dim), i(n), i(skip)], dtype=t)
    yield C("SobolSample", [i(1112), i(1), i(0)], code=tf.errors.UNIMPLEMENTED)
    for bad in range(3):
        yield C("SobolSample", [np.full((1,) if k == bad else (), 1, i) for k in range(3)])
