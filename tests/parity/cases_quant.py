"""Quantization in floating point: QuantizeAndDequantize, FakeQuant and their gradients."""
import numpy as np
import tensorflow as tf

from cases_array import i32
from cases_math import rand
from kernels import Case as C

SHAPES = ((), (1,), (7,), (0,), (3, 5), (2, 3, 4), (5, 1), (0, 4), (2, 40, 37), (3, 0, 2), (300, 70))
V2, V3, V4 = "QuantizeAndDequantizeV2", "QuantizeAndDequantizeV3", "QuantizeAndDequantizeV4"


def ends(rng, t, n, low=-1.5, high=1.5):
    """Least and largest of n channels, or of all."""
    a, b = rand(rng, t, (n,) if n is not None else (), low, high), rand(rng, t, (n,) if n is not None else (), low, high)
    return np.minimum(a, b), np.maximum(a, b)


def old(x, lo=0.0, hi=0.0, range_given=False, **attrs):
    """QuantizeAndDequantize, which TensorFlow runs in old graphs only."""
    return C("QuantizeAndDequantize", [x], input_min=float(lo), input_max=float(hi), range_given=range_given, like=C(V2, [x, x.dtype.type(lo), x.dtype.type(hi)], range_given=range_given, **attrs), **attrs)


def cases_quantize(rng, quick):
    for t in (np.float32, np.float64):
        for shape in SHAPES:
            for i in range(4 if quick else 20):
                bits, sign, narrow = int(rng.choice([2, 4, 8, 16, 24, 50])), bool(rng.randint(2)), bool(rng.randint(2))
                mode = str(rng.choice(["HALF_TO_EVEN", "HALF_UP"]))
                x = rand(rng, t, shape, -2, 2)
                for axis in [-1] + list(range(len(shape))):
                    n = shape[axis] if axis >= 0 else None
                    lo, hi = ends(rng, t, n)
                    for given in (False, True):
                        for op in (V2, V4):
                            yield C(op, [x, lo, hi], signed_input=sign, num_bits=bits, range_given=given, round_mode=mode, narrow_range=narrow, axis=axis)
                        yield C(V3, [x, lo, hi, i32(bits)], signed_input=sign, range_given=given, narrow_range=narrow, axis=axis)
                    yield C("QuantizeAndDequantizeV4Grad", [rand(rng, t, shape), x, lo, hi], axis=axis)
                lo, hi = ends(rng, np.float32, None)
                yield old(x, signed_input=sign, num_bits=bits)
                yield old(x, lo, hi, True, signed_input=sign, num_bits=bits)
    # halves, one bit, ranges on one side of zero, of no width, of all zeros; defaults
    x, one = np.arange(-8, 8.25, 0.25, dtype=np.float32), np.float32(1)
    for mode in ("HALF_TO_EVEN", "HALF_UP"):
        for lo, hi in ((-4, 3), (-128, 127), (1, 2), (-3, -1), (0, 0), (2, 2), (0, 5)):
            for sign in (False, True):
                for narrow in (False, True):
                    for bits in (1, 3, 8):
                        yield C(V2, [x, one * lo, one * hi], signed_input=sign, num_bits=bits, range_given=True, round_mode=mode, narrow_range=narrow)
    yield C(V2, [x, one, one])
    yield C(V3, [x, -one, one, i32(8)])
    yield old(x)
    yield C(V2, [np.zeros([3], np.float32), one, one])
    m = rand(rng, np.float32, (2, 3))
    for bits in (0, -1, 62, 63, 64):
        for sign in (False, True):
            yield C(V2, [m, -one, one], num_bits=bits, signed_input=sign)
            yield C(V3, [m, -one, one, i32(bits)], signed_input=sign)
    yield C(V2, [m, one, -one], range_given=True)
    yield C(V3, [m, one, -one, i32(8)])
    yield old(m, 1, 0, True)
    yield C(V3, [m, -one, one, i32([8])])
    for axis in (2, -2):
        yield C(V2, [m, -one, one], axis=axis)
        yield C("QuantizeAndDequantizeV4Grad", [m, m, -one, one], axis=axis)
    three = np.ones([3], np.float32)
    for lo, hi in ((-three[:2], three), (-three, three[:2]), (-three, one), (-one, three), (three, -three)):
        yield C(V2, [m, lo, hi], axis=1, range_given=True)
        yield C(V3, [m, lo, hi, i32(8)], axis=1)
        yield C("QuantizeAndDequantizeV4Grad", [m, m, lo, hi], axis=1)
    yield C("QuantizeAndDequantizeV4Grad", [m[:1], m, -one, one])
    yield C("QuantizeAndDequantizeV4Grad", [m, m, -three, one])


def cases_fake_quant(rng, quick):
    def both(op, inputs, shape, **attrs):
        yield C("FakeQuantWithMinMax" + op, inputs, **attrs)
        yield C("FakeQuantWithMinMax" + op + "Gradient", [rand(rng, np.float32, shape)] + inputs, tol=1e-4, atol=1e-3, **attrs)

    for shape in SHAPES:
        for i in range(4 if quick else 20):
            bits, narrow, x = int(rng.randint(2, 17)), bool(rng.randint(2)), rand(rng, np.float32, shape, -8, 8)
            for low, high in ((-6, 6), (0, 4), (-5, 0), (1, 3), (-4, -2)):
                lo, hi = ends(rng, np.float32, None, low, high)
                yield from both("Args", [x], shape, min=float(lo), max=float(hi), num_bits=bits, narrow_range=narrow)
                yield from both("Vars", [x, lo, hi], shape, num_bits=bits, narrow_range=narrow)
                if shape:
                    lo, hi = ends(rng, np.float32, shape[-1], low, high)
                    lo[:1] = hi[:1] = 0
                    yield from both("VarsPerChannel", [x, lo, hi], shape, num_bits=bits, narrow_range=narrow)
    m, one, three = rand(rng, np.float32, (2, 3), -8, 8), np.float32(1), np.ones([3], np.float32)
    yield from both("Args", [m], (2, 3))
    yield from both("Vars", [m, -one, one], (2, 3))
    yield from both("Vars", [m, 0 * one, 0 * one], (2, 3))
    for bits in (1, 17):
        yield from both("Args", [m], (2, 3), num_bits=bits)
        yield from both("Vars", [m, -one, one], (2, 3), num_bits=bits)
        yield from both("VarsPerChannel", [m, -three, three], (2, 3), num_bits=bits)
    for lo, hi in ((1.0, 1.0), (2.0, 1.0)):
        yield from both("Args", [m], (2, 3), min=lo, max=hi)
    yield from both("Args", [m], (3, 3))
    yield from both("Vars", [m, -three, one], (2, 3))
    yield from both("Vars", [m, -one, three], (2, 3))
    yield from both("VarsPerChannel", [m, -one, three], (2, 3))
    yield from both("VarsPerChannel", [m, -three, three[:2]], (2, 3))
    yield from both("VarsPerChannel", [m, -three[:2], three], (2, 3))
    yield from both("VarsPerChannel", [m, -three, three], (3, 3))


def cases_quantize_v2(rng, quick):
    kinds = ((tf.qint8, np.int8), (tf.quint8, np.uint8), (tf.qint16, np.int16), (tf.quint16, np.uint16), (tf.qint32, np.int32))
    for q, t in kinds:
        def whole(shape):
            i = np.iinfo(t)
            x = rng.randint(i.min, i.max, shape).astype(t)
            x.flat[:2] = i.min, i.max - (200 if t == np.int32 else 0)  # the last ones of 32 bits are 2^31 as floats, which TensorFlow makes negative
            return x.view(q.as_numpy_dtype)

        for mode in ("MIN_COMBINED", "MIN_FIRST", "SCALED"):
            for narrow in (False, True):
                for shape, axis in (((40,), -1), ((3, 5), -1), ((3, 5), 0), ((2, 3, 4), 1), ((4, 1), 1), ((300, 70), -1)):
                    n = shape[axis] if axis >= 0 else None
                    for low, high in ((-3, 3), (0, 5), (-4, 0), (1, 3)):
                        lo, hi = ends(rng, np.float32, n, low, high)
                        x = rand(rng, np.float32, shape, -5, 5)
                        for to in (tf.float32, tf.bfloat16):
                            yield C("Dequantize", [whole(shape), lo, hi], mode=mode, narrow_range=narrow, axis=axis, dtype=to)
                        if q == tf.qint32 and mode != "MIN_FIRST":
                            continue  # TensorFlow converts 2^31 to 32 bits there
                        for half in ("HALF_AWAY_FROM_ZERO", "HALF_TO_EVEN"):
                            yield C("QuantizeV2", [x, lo, hi], T=q, mode=mode, narrow_range=narrow, axis=axis, round_mode=half)
                            yield C("QuantizeV2", [x, lo, hi], T=q, mode=mode, axis=axis, round_mode=half, ensure_minimum_range=2.5)
        # halves between whole numbers; nothing; one number as range
        x, one = np.arange(-8, 8.25, 0.25, dtype=np.float32), np.float32(1)
        if q != tf.qint32:
            for half in ("HALF_AWAY_FROM_ZERO", "HALF_TO_EVEN"):
                yield C("QuantizeV2", [x, -one * 128, one * 127], T=q, mode="SCALED", round_mode=half)
            yield C("QuantizeV2", [x, -one, one], T=q)
            for lo, hi in ((0, 0), (2, 2), (-2, -2), (1, 0)):
                yield C("QuantizeV2", [x, one * lo, one * hi], T=q)
                yield C("QuantizeV2", [x, one * lo, one * hi], T=q, mode="SCALED")
        yield C("QuantizeV2", [x[:0], -one, one], T=q, mode="MIN_FIRST")
        yield C("QuantizeV2", [x, 2 * one, 2 * one], T=q, mode="MIN_FIRST")
        yield C("Dequantize", [whole((4,)), -one, one])
        yield C("Dequantize", [whole((4,)), one, one], mode="MIN_FIRST")
        yield C("Dequantize", [whole((4,))[:0], -one, one])
    m, three = rand(rng, np.float32, (2, 3)), np.ones([3], np.float32)
    w = np.zeros([2, 3], np.int8).view(tf.qint8.as_numpy_dtype)
    for lo, hi, axis in ((-three, three, -1), (-one, three, 1), (-three, one, 1), (-three[:2], three, 1), (-three, three[:2], 1), (-three, three, 0), (-three, three, 2), (-one, one, 2)):
        yield C("QuantizeV2", [m, lo, hi], T=tf.qint8, axis=axis)
        yield C("Dequantize", [w, lo, hi], axis=axis)
