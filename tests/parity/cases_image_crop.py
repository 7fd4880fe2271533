"""Crops, projective transforms, glimpses. What is only copied must be equal; what is interpolated: 1e-5 relative to numbers of size 1."""
import numpy as np
import tensorflow as tf

from cases_image import i32
from cases_image_resize import f32
from cases_math import rand
from kernels import Case as C

TYPES = [np.uint8, np.uint16, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64]
WARPED = [np.uint8, np.int32, np.int64, np.float16, np.float32, np.float64]


def boxes(rng, n):
    b = rand(rng, np.float32, (n, 4), -0.3, 1.3)
    b[:n // 4] = [0, 0, 1, 1]
    b[n // 4:n // 3] = [1, 0.25, 0, 0.75]
    return b


def cases_crop(rng, quick):
    for x, n, size in (((2, 5, 6, 3), 7, (4, 5)), ((1, 1, 1, 1), 3, (2, 2)), ((3, 8, 9, 1), 12, (1, 1)), ((2, 4, 4, 2), 6, (1, 7)), ((2, 3, 3, 1), 0, (2, 2)), ((1, 40, 30, 3), 9, (20, 25)),
                       ((2, 4, 4, 0), 2, (2, 2))):
        b, of = boxes(rng, n), rng.randint(0, x[0], n).astype(np.int32)
        for how in ("bilinear", "nearest"):
            for t in TYPES:
                for value in (0.0, -2.5):
                    v = rand(rng, t, x, 0, 10)
                    yield C("CropAndResize", [v, b, of, i32(*size)], method=how, extrapolation_value=value, tol=1e-5, atol=1e-5)
                if x[3]:
                    yield C("CropAndResizeGradBoxes", [rand(rng, np.float32, (n, *size, x[3]), -1, 1), v, b, of], tol=1e-4, atol=1e-2)
            # Threads of TensorFlow's gradient add without a lock, each for some of the boxes: boxes of one image only where they are too few to be divided.
            apart = x if n * size[0] * size[1] * x[3] < 1000 else (n, *x[1:])
            own = of if apart is x else rng.permutation(n).astype(np.int32)
            for t in (np.float32, np.float64, np.float16):
                tol = 1e-2 if t == np.float16 else 1e-5
                yield C("CropAndResizeGradImage", [rand(rng, np.float32, (n, *size, x[3]), -1, 1), b, own, i32(*apart)], T=tf.as_dtype(t), method=how, tol=tol, atol=tol * 4)
    v, g, b, of, size = rand(rng, np.float32, (2, 4, 4, 1), 0, 1), rand(rng, np.float32, (3, 2, 2, 1), 0, 1), boxes(rng, 3), i32(0, 1, 1), i32(2, 2)
    yield C("CropAndResize", [v, b, of, size], tol=1e-5, atol=1e-5)
    bad_boxes = [(b[:2], of), (b, of[:2]), (b[:, :3], of), (b[0], of), (b, of.reshape(3, 1)), (b, i32(0, 1, 2)), (b, i32(0, -1, 1)), (b[:0, :3], of[:0])]
    for q, o in bad_boxes:
        yield C("CropAndResize", [v, q, o, size])
        if len(q.shape) == 2 and len(o.shape) == 1:
            yield C("CropAndResizeGradImage", [g, q, o, i32(2, 4, 4, 1)], T=tf.float32)
            yield C("CropAndResizeGradBoxes", [g, v, q, o])
    for q in (np.inf, np.nan):
        c = b.copy()
        c[1, 2] = q
        yield C("CropAndResize", [v, c, of, size])
    for s in (i32(0, 2), i32(2, -1), i32(2), np.array(2, np.int32), i32(1, 2, 3)):
        yield C("CropAndResize", [v, b, of, s])
        yield C("CropAndResize", [v, b, of + 2, s])
    yield C("CropAndResize", [v, boxes(rng, 8), np.arange(8, dtype=np.int32), i32(2065374891, 1145309325)])
    yield C("CropAndResize", [v[0], b, of, size])
    yield C("CropAndResize", [v[:, :0], b, of, size])
    for s in (i32(2, 4, 4), i32(2, 0, 4, 1), i32(2, 4, 4, 2), i32(1, 4, 4, 1), i32(-1, 4, 4, 1), np.array(4, np.int32)):
        yield C("CropAndResizeGradImage", [g, b, of, s], T=tf.float32)
    for h in (g[0], g[:2], g[:, :0]):
        yield C("CropAndResizeGradImage", [h, b, of, i32(2, 4, 4, 1)], T=tf.float32)
        yield C("CropAndResizeGradBoxes", [h, v, b, of])
    for w in (v[0], v[:, :0], v[..., :0]):
        yield C("CropAndResizeGradBoxes", [g, w, b, of])


def transforms(rng, n):
    t = rand(rng, np.float32, (n, 8), -1.2, 1.2)
    t[:, [2, 5]] *= 4
    t[:, 6:] *= rng.choice([0, 0.1], (n, 1))
    t[:n // 2] = [1, 0, 2, 0, 1, -1, 0, 0]
    return t


def cases_warp(rng, quick):
    V2, V3 = "ImageProjectiveTransformV2", "ImageProjectiveTransformV3"
    for x, size in (((2, 5, 6, 3), (5, 6)), ((1, 1, 1, 1), (3, 4)), ((4, 7, 3, 1), (9, 12)), ((0, 3, 3, 2), (2, 2)), ((1, 30, 41, 2), (33, 20)), ((2, 0, 3, 1), (2, 2)), ((2, 3, 3, 0), (2, 2))):
        for t in WARPED:
            for how in ("NEAREST", "BILINEAR"):
                for fill in ("CONSTANT", "REFLECT", "WRAP", "NEAREST"):
                    for one in (False, True):
                        tr = transforms(rng, 1 if one else x[0])
                        # whole numbers are cut off behind the point: at most one more or less
                        a = dict(interpolation=how, fill_mode=fill, **({} if how == "NEAREST" else dict(atol=1.001, tol=1e-5) if np.issubdtype(t, np.integer) else dict(tol=1e-3, atol=1e-2) if t == np.float16 else dict(tol=1e-5, atol=1e-4)))
                        v = rand(rng, t, x, 0, 100)
                        yield C(V2, [v, tr, i32(*size)], **a)
                        yield C(V3, [v, tr, i32(*size), np.float32(7.5)], **a)
    v, tr = rand(rng, np.float32, (2, 4, 4, 1), 0, 1), np.tile(f32(1, 0, 0, 0, 1, 0, 0, 0), (2, 1))
    far = tr.copy()
    far[0, :3] = [1e20, 0, 3e30]
    far[1, 5] = -1e25
    for fill in ("CONSTANT", "REFLECT", "WRAP", "NEAREST"):
        for how in ("NEAREST", "BILINEAR"):
            yield C(V2, [v, tr * f32(1, 1, 1, 1, 1, 1, 1, 1) + f32(0, 0, 0, 0, 0, 0, -0.5, 0), i32(4, 4)], interpolation=how, fill_mode=fill, tol=1e-5, atol=1e-5)  # infinity
            if how == "NEAREST":
                yield C(V2, [v, far, i32(4, 4)], interpolation=how, fill_mode=fill)
    yield C(V2, [v, tr, i32(4, 4)], interpolation="NEAREST")
    ok = dict(interpolation="NEAREST")
    for t in (tr[0], tr[:, :7], np.tile(tr, (2, 1)), tr[:0]):
        yield C(V2, [v, t, i32(4, 4)], **ok)
    for s in (i32(0, 2), i32(2, -1), i32(2), np.array(2, np.int32), i32(1, 2, 3)):
        yield C(V2, [v, tr, s], **ok)
    yield C(V2, [v[0], tr, i32(4, 4)], **ok)
    yield C(V3, [v, tr, i32(4, 4), f32(1)], **ok)


def cases_glimpse(rng, quick):
    for x, size in (((2, 5, 6, 3), (3, 3)), ((3, 8, 9, 1), (2, 20)), ((1, 4, 4, 2), (9, 9)), ((2, 4, 4, 1), (0, 3)), ((0, 4, 4, 1), (2, 2)), ((2, 4, 4, 0), (2, 2))):
        for centered in (False, True):
            for normalized in (False, True):
                for op in ("ExtractGlimpse", "ExtractGlimpseV2"):
                    for i in range(4):
                        at = rand(rng, np.float32, (x[0], 2), -1.5, 1.5) * (1 if normalized else 8)
                        yield C(op, [rand(rng, np.float32, x, 0, 1), i32(*size), at], centered=centered, normalized=normalized, uniform_noise=False, noise="zero")
    v, at = rand(rng, np.float32, (2, 8, 8, 1), 0, 1), f32(0, 0, 0.1, 0.1).reshape(2, 2)
    for op in ("ExtractGlimpse", "ExtractGlimpseV2"):
        yield C(op, [v, i32(3, 3), at])
        for noise in ("gaussian", "uniform", ""):
            yield C(op, [v, i32(3, 3), at], noise=noise, uniform_noise=False)
            yield C(op, [0 * v + 2, i32(30, 3), at], noise=noise, uniform_noise=False)
        yield C(op, [v, i32(3, 3), f32(1e30, -1e30, np.inf, 5).reshape(2, 2)], noise="zero", uniform_noise=False)
        yield C(op, [v, i32(3, 3), at], noise="gaussian")
        yield C(op, [v, i32(3, 3), at], noise="pink", uniform_noise=False)
        for s in (i32(-1, 2), i32(2), i32(1, 2, 3)):
            yield C(op, [v, s, at])
        yield C(op, [v[0], i32(3, 3), at])
        for a in (at[0], at[:1], np.ones([2, 3], np.float32)):
            yield C(op, [v, i32(3, 3), a])
