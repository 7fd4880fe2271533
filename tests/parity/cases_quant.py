"""Quantization in floating point: QuantizeAndDequantize, FakeQuant and their gradients."""
import numpy as np

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
