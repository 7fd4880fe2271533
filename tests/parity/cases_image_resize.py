"""Resizing by areas, cubics and filters. float: 1e-5 relative to numbers of size 1; the same formulas in another order."""
import numpy as np

from cases_image import REAL, i32
from cases_math import rand
from kernels import Case as C

FILTERS = ("lanczos1", "lanczos3", "lanczos5", "gaussian", "box", "triangle", "keyscubic", "mitchellcubic")
SHAPES = [((2, 4, 5, 3), (7, 3)), ((1, 1, 1, 1), (3, 4)), ((2, 6, 6, 2), (6, 6)), ((1, 9, 2, 4), (1, 1)), ((0, 3, 3, 1), (2, 2)), ((1, 3, 4, 70), (8, 13)), ((1, 31, 40, 3), (9, 100)),
          ((3, 50, 7, 1), (2, 5)), ((1, 120, 90, 3), (64, 64))]


def f32(*v):
    return np.array(v, np.float32)


def cases_resize_area(rng, quick):
    for align in (False, True):
        for x, to in SHAPES:
            for t in REAL if x[1] * x[2] < 500 else REAL[-2:]:
                yield C("ResizeArea", [rand(rng, t, x, 0, 10), i32(*to)], tol=1e-5, atol=1e-5, align_corners=align)


def cases_resize_bicubic(rng, quick):
    for align, half in ((False, False), (True, False), (False, True)):
        a = dict(align_corners=align, half_pixel_centers=half)
        for x, to in SHAPES:
            for t in REAL if x[1] * x[2] < 500 else REAL[-2:]:
                yield C("ResizeBicubic", [rand(rng, t, x, 0, 10), i32(*to)], tol=1e-5, atol=1e-4, **a)
            for t in (np.float32, np.float64):
                yield C("ResizeBicubicGrad", [rand(rng, np.float32, (x[0], *to, x[3]), -1, 1), rand(rng, t, x, -1, 1)], tol=1e-5, atol=1e-4, **a)


def cases_resize_bad(rng, quick):
    v = rand(rng, np.float32, (2, 3, 4, 1), 0, 1)
    both = dict(align_corners=True, half_pixel_centers=True)
    for op in ("ResizeArea", "ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor"):
        for size in (i32(0, 2), i32(2, -1), i32(2), np.array(2, np.int32), i32(1, 2, 3)):
            yield C(op, [v, size])
        yield C(op, [v[0], i32(2, 2)])
        yield C(op, [v[:, :0], i32(2, 2)])
        yield C(op, [v[..., :0], i32(2, 2)])
        if op != "ResizeArea":
            yield C(op, [v, i32(2, 2)], **both)
    for op in ("ResizeBicubicGrad", "ResizeBilinearGrad"):
        yield C(op, [v, v], **both)
        yield C(op, [v[0], v])
        yield C(op, [v, v[0]])
        yield C(op, [v[:, :0], v])
        yield C(op, [v, v[:, :, :0]])


def cases_scale_and_translate(rng, quick):
    for kind in FILTERS:
        for antialias in (False, True):
            a = dict(kernel_type=kind, antialias=antialias)
            for x, to in SHAPES:
                for fit in (True, False):
                    scale = f32(to[0] / x[1], to[1] / x[2]) if fit else rand(rng, np.float32, (2,), 0.05, 3)
                    move = f32(0, 0) if fit else rand(rng, np.float32, (2,), -3, 3)
                    yield C("ScaleAndTranslate", [rand(rng, np.float32, x, 0, 1), i32(*to), scale, move], tol=1e-5, atol=1e-5, **a)
                    yield C("ScaleAndTranslateGrad", [rand(rng, np.float32, (x[0], *to, x[3]), -1, 1), rand(rng, np.float32, x, -1, 1), scale, move], tol=1e-5, atol=1e-4, **a)
    for t in REAL:
        yield C("ScaleAndTranslate", [rand(rng, t, (2, 5, 6, 3), 0, 10), i32(4, 9), f32(0.9, 1.6), f32(0.3, -1)], tol=1e-5, atol=1e-4)
    v, one, zero = rand(rng, np.float32, (2, 3, 4, 1), 0, 1), f32(1, 1), f32(0, 0)
    yield C("ScaleAndTranslate", [v, i32(3, 4), one, zero], kernel_type="Box", tol=1e-5)
    yield C("ScaleAndTranslate", [v, i32(3, 4), one, f32(100, 0)], tol=1e-5)
    yield C("ScaleAndTranslate", [v, i32(3, 4), f32(1e-6, 1), zero], tol=1e-5)
    yield C("ScaleAndTranslateGrad", [v[:, :0], v, one, zero])
    yield C("ScaleAndTranslateGrad", [v, v[:, :0], one, zero])
    yield C("ScaleAndTranslate", [v, i32(3, 4), one, zero], kernel_type="cubic")
    yield C("ScaleAndTranslateGrad", [v, v, one, zero], kernel_type="cubic")
    for scale, move in ((f32(0, 1), zero), (f32(1, -1), zero), (f32(np.nan, 1), zero), (f32(1), zero), (f32(1, 2, 3), zero), (one, f32(0)), (one[0], zero), (one, zero[0])):
        yield C("ScaleAndTranslate", [v, i32(3, 4), scale, move])
        yield C("ScaleAndTranslateGrad", [v, v, scale, move])
    for size in (i32(0, 2), i32(2, -1), i32(2), np.array(2, np.int32)):
        yield C("ScaleAndTranslate", [v, size, one, zero])
    for bad in (v[0], v[:, :0], v[..., :0]):
        yield C("ScaleAndTranslate", [bad, i32(2, 2), one, zero])
    yield C("ScaleAndTranslateGrad", [v[0], v, one, zero])
    yield C("ScaleAndTranslateGrad", [v, v[0], one, zero])
