"""Resizing, colour, grey-scale dilation. float: 1e-5 relative to numbers of size 1; the same formulas in another order."""
import numpy as np

from cases_math import BF16, FLOATS, rand
from kernels import Case as C

REAL = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.float16, BF16, np.float32, np.float64]
TOL = {np.float32: (1e-5, 1e-5), np.float64: (1e-11, 1e-11), np.float16: (4e-3, 4e-3), BF16: (2e-2, 2e-2)}


def i32(*v):
    return np.array(v, np.int32)


def cases_resize(rng, quick):
    shapes = [((2, 4, 5, 3), (7, 3)), ((1, 1, 1, 1), (3, 4)), ((2, 6, 6, 2), (6, 6)), ((1, 9, 2, 4), (1, 1)), ((0, 3, 3, 1), (2, 2)), ((1, 3, 4, 9), (8, 13))]
    for align, half in ((False, False), (True, False), (False, True)):
        a = dict(align_corners=align, half_pixel_centers=half)
        for x, to in shapes:
            for t in REAL:
                v = rand(rng, t, x, 0, 10)
                yield C("ResizeBilinear", [v, i32(*to)], tol=1e-5, atol=1e-5, **a)
                yield C("ResizeNearestNeighbor", [v, i32(*to)], **a)
            for t in (np.float32, np.float64, np.float16, BF16):
                tol, atol = TOL[np.float32 if t == np.float64 else t]  # the weights are float
                if x[0]:
                    yield C("ResizeBilinearGrad", [rand(rng, np.float32, (x[0], *to, x[3]), -1, 1), rand(rng, t, x, -1, 1)], tol=tol, atol=atol * 8, **a)
            for t in (np.float32, np.float64, np.float16, np.int32):
                g = rand(rng, t, (x[0], *to, x[3]), -3, 3)
                if x[0]:
                    yield C("ResizeNearestNeighborGrad", [g, i32(*x[1:3])], tol=1e-2 if t == np.float16 else 1e-5, atol=2e-2 if t == np.float16 else 1e-5, **a)
    v = rand(rng, np.float32, (2, 3, 4, 1), 0, 1)
    for op in ("ResizeBilinear", "ResizeNearestNeighbor"):
        yield C(op, [v, i32(0, 2)])
        yield C(op, [v, i32(2)])
        yield C(op, [v, np.array(2, np.int32)])
        yield C(op, [v[0], i32(2, 2)])
        yield C(op, [v[:, :0], i32(2, 2)])
        yield C(op, [v, i32(2, 2)], align_corners=True, half_pixel_centers=True)


def cases_colour(rng, quick):
    for t in (np.float32, np.float16, np.float64, BF16):
        tol, atol = TOL[t]
        for x in ((3,), (4, 5, 3), (2, 3, 2, 3), (0, 3), (2, 2, 3, 1, 3)):
            v = rand(rng, t, x, 0, 1)
            yield C("RGBToHSV", [v], tol=tol, atol=atol * 4)
            yield C("HSVToRGB", [v], tol=tol, atol=atol * 4)
        yield C("RGBToHSV", [np.array([[0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.5], [1, 1, 0], [0, 1, 1], [1, 0, 1]], t)], tol=tol, atol=atol)
    for t in (np.float32, np.float16):
        tol, atol = TOL[t]
        for x in ((4, 5, 3), (2, 3, 2, 3), (0, 2, 3), (2, 2, 3, 1, 3)):
            v = rand(rng, t, x, 0, 1)
            for p in (-0.9, -0.3, 0.0, 0.25, 0.7, 1.0):
                yield C("AdjustHue", [v, np.array(p, np.float32)], tol=tol * 2, atol=atol * 4)
                yield C("AdjustSaturation", [v, np.array(p * 3, np.float32)], tol=tol * 2, atol=atol * 4)
                if v.size:
                    yield C("AdjustContrastv2", [v, np.array(p * 2, np.float32)], tol=tol * 2, atol=atol * 4)
    v = rand(rng, np.float32, (4, 5, 2), 0, 1)
    yield C("AdjustContrastv2", [v, np.array(2, np.float32)], tol=1e-5, atol=1e-5)
    p = np.array(0.5, np.float32)
    for op in ("AdjustHue", "AdjustSaturation"):
        yield C(op, [v, p])
        yield C(op, [v[0], p])
        yield C(op, [rand(rng, np.float32, (2, 2, 3), 0, 1), np.array([0.5], np.float32)])
    yield C("AdjustContrastv2", [v[0], p])
    yield C("AdjustContrastv2", [v, np.array([1, 2], np.float32)])
    yield C("RGBToHSV", [v])
    yield C("RGBToHSV", [p])
    yield C("HSVToRGB", [v])


def cases_dilation(rng, quick):
    for t in (np.float32, np.float64, np.float16, np.int32, np.uint8, np.int64):
        for x, f in (((2, 5, 6, 3), (3, 2, 3)), ((1, 4, 4, 1), (1, 1, 1)), ((2, 7, 5, 4), (2, 3, 4)), ((0, 4, 4, 2), (2, 2, 2))):
            for pad in ("SAME", "VALID"):
                for s, r in (((1, 1), (1, 1)), ((2, 1), (1, 2)), ((2, 2), (2, 1))):
                    a = dict(strides=[1, *s, 1], rates=[1, *r, 1], padding=pad)
                    reach = [(f[i] - 1) * r[i] + 1 for i in (0, 1)]
                    o = [(x[1 + i] + s[i] - 1) // s[i] if pad == "SAME" else (x[1 + i] - reach[i] + s[i]) // s[i] for i in (0, 1)]
                    vx, vf, vg = (rng.randint(0, 9, n).astype(t) for n in (x, f, (x[0], *o, x[3])))
                    yield C("Dilation2D", [vx, vf], **a)
                    if x[0]:
                        yield C("Dilation2DBackpropInput", [vx, vf, vg], **a)
                        yield C("Dilation2DBackpropFilter", [vx, vf, vg], **a)
    v = lambda *s: rand(rng, np.float32, s, 0, 1)
    ok = dict(strides=[1, 1, 1, 1], rates=[1, 1, 1, 1], padding="SAME")
    yield C("Dilation2D", [v(1, 3, 3, 2), v(2, 2, 3)], **ok)
    yield C("Dilation2D", [v(1, 3, 3), v(2, 2, 3)], **ok)
    yield C("Dilation2D", [v(1, 3, 3, 2), v(2, 2, 2, 1)], **ok)
    yield C("Dilation2D", [v(1, 3, 3, 2), v(2, 2, 2)], strides=[1, 1, 1, 2], rates=[1, 1, 1, 1], padding="SAME")
    yield C("Dilation2D", [v(1, 3, 3, 2), v(2, 2, 2)], strides=[1, 1, 1, 1], rates=[2, 1, 1, 1], padding="SAME")
    yield C("Dilation2DBackpropInput", [v(1, 3, 3, 2), v(2, 2, 2), v(1, 2, 3, 2)], **ok)
