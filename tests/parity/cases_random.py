"""Random numbers: not close, equal. Seeds never repeat, because TensorFlow keeps a stateful op's generator from one eager call to the next."""
import itertools

import numpy as np
import tensorflow as tf

from cases_math import rand
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
        for op in ("StatelessRandomGetKeyCounter", "StatelessRandomGetKeyCounterAlg"):
            yield C(op, [seed])
        yield C("StatelessMultinomial", [rand(rng, np.float64, (4, 6)), np.int32(9), seed], tol=0)
    yield C("StatelessRandomGetAlg", [])
    yield C("StatelessRandomUniform", [shape((3,)), np.array([1, 2, 3])], dtype=tf.float32)
    # A counter about to run over, and an algorithm that is not there.
    full = np.array([(1 << 64) - 3, 5], np.uint64)
    yield C("StatelessRandomUniformFullIntV2", [shape((400,)), np.array([9], np.uint64), full, np.int32(1)], dtype=tf.uint32, tol=0)
    yield C("StatelessRandomUniformV2", [shape((3,)), np.array([9], np.uint64), full, np.int32(7)], dtype=tf.float32)
