"""Boxes: sampled (equal bits), drawn, suppressed. All results are copies, indices or products of a few numbers: equal, but for soft scores."""
import itertools

import numpy as np

from cases_image import i32
from cases_image_resize import f32
from cases_math import rand
from kernels import Case as C

_seeds = itertools.count(1)


def corners(rng, *shape):
    a = rand(rng, np.float32, (*shape, 2), 0, 1)
    b = rand(rng, np.float32, (*shape, 2), 0, 1)
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], -1)


def cases_sample_box(rng, quick):
    V1, V2, V3 = "SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2", "StatelessSampleDistortedBoundingBox"

    def all_three(size, box, least, **a):
        s = dict(seed=next(_seeds), seed2=next(_seeds) << 33)
        yield C(V1, [size, box], min_object_covered=float(least), tol=0, **s, **a)
        yield C(V2, [size, box, np.float32(least)], tol=0, **s, **a)
        for t in (np.int32, np.int64):
            yield C(V3, [size, box, np.float32(least), np.array([s["seed"], 12345], t)], tol=0, **a)

    for t in (np.uint8, np.int8, np.int16, np.int32, np.int64):
        for h, w in ((40, 60), (1, 1), (100, 3), (7, 120), (0, 5), (127, 127)):
            for i in range(3 if quick else 20):
                size = np.array([h, w, 3], t)
                yield from all_three(size, corners(rng, 1, int(rng.randint(1, 5))), rng.choice([0, 0.1, 0.5, 0.9, 1.0]))
                yield from all_three(size, np.zeros([1, 0, 4], np.float32), 0.3, use_image_if_no_bounding_boxes=True)
                lo, hi = sorted(rng.uniform(0.05, 1, 2).tolist())
                yield from all_three(size, corners(rng, 2, 3), 0.2, aspect_ratio_range=[0.2 + lo, 0.5 + 3 * hi], area_range=[lo, hi], max_attempts=int(rng.randint(1, 50)))
    big = np.array([60000, 90000, 3], np.int64)
    for i in range(20):
        yield from all_three(big, corners(rng, 1, 2), 0.1)
        yield from all_three(np.array([480, 640, 3], np.int32), corners(rng, 1, 3), 0.1, aspect_ratio_range=[0.01, 100.0], area_range=[0.001, 0.01])
    size, box = i32(20, 30, 3), corners(rng, 1, 2)
    yield from all_three(np.array([2**31 - 2, 2**31 - 2, 3], np.int64), box, 0.5)
    yield from all_three(np.array([2**31, 5, 3], np.int64), box, 0.5)
    yield from all_three(i32(-1, 5, 3), box, 0.5)
    yield from all_three(i32(5, 3), box, 0.5)
    yield from all_three(i32(5, 3, 1).reshape(1, 3), box, 0.5)
    for b in (box[0], box[..., :3], box + 1, box - 1, box[:, :0]):
        yield from all_three(size, b, 0.5)
    yield from all_three(size, box, -0.5)
    for a in (dict(aspect_ratio_range=[1.0]), dict(aspect_ratio_range=[0.0, 1.0]), dict(aspect_ratio_range=[-1.0, 1.0]), dict(area_range=[0.5]), dict(area_range=[0.0, 0.5]), dict(area_range=[0.1, 1.5]),
              dict(max_attempts=0), dict(max_attempts=-3), dict(area_range=[0.9, 0.1]), dict(aspect_ratio_range=[2.0, 0.5])):
        yield from all_three(size, box, 0.5, **a)
    yield C(V2, [size, box, f32(0.1)], seed=1)
    yield C(V3, [size, box, np.float32(0.1), i32(1)])


def cases_draw(rng, quick):
    V1, V2 = "DrawBoundingBoxes", "DrawBoundingBoxesV2"
    for t in (np.float32, np.float16):
        for c in (1, 3, 4):
            for n, h, w, b in ((2, 10, 12, 3), (1, 1, 1, 2), (1, 30, 20, 15), (0, 3, 3, 1), (2, 5, 5, 0), (1, 0, 4, 2)):
                x = rand(rng, t, (n, h, w, c), 0, 1)
                for box in (corners(rng, n, b), rand(rng, np.float32, (n, b, 4), -0.6, 1.6)):
                    yield C(V1, [x, box])
                    yield C(V2, [x, box, rand(rng, np.float32, (3, 5), 0, 1)])
                    yield C(V2, [x, box, np.zeros([0, 4], np.float32)])
    x, box = rand(rng, np.float32, (2, 8, 8, 3), 0, 1), corners(rng, 2, 3)
    far = box.copy()
    far[0, 0], far[0, 1], far[1, 0] = [-1e30, -np.inf, 1e30, 3], [np.nan, 0, 1, 1], [0, 0, np.nan, 1]
    yield C(V1, [x, far])
    for y, b in ((x[..., :2], box), (x, box[0]), (x, box[:1]), (x, box[..., :3])):
        yield C(V1, [y, b])
        yield C(V2, [y, b, f32(1, 1, 1, 1).reshape(1, 4)])
    yield C(V2, [x, box, f32(1, 1, 1)])
    yield C(V2, [x, box, f32(1, 1).reshape(1, 2)])


def cases_nms(rng, quick):
    names = ["NonMaxSuppression" + v for v in ("", "V2", "V3", "V4", "V5")]

    def each(box, score, most, iou, least, sigma=0.0, threshold=None):
        t = box.dtype.type
        q = threshold or t
        if t == np.float32:
            yield C(names[0], [box, score, np.int32(most)], iou_threshold=float(iou))
        yield C(names[1], [box, score, np.int32(most), q(iou)])
        yield C(names[2], [box, score, np.int32(most), q(iou), q(least)])
        for pad in (False, True):
            yield C(names[3], [box, score, np.int32(most), q(iou), q(least)], pad_to_max_output_size=pad)
            yield C(names[4], [box, score, np.int32(most), t(iou), t(least), t(sigma)], pad_to_max_output_size=pad, tol=1e-6 if t == np.float32 else 2e-3)

    for t in (np.float32, np.float16):
        for n in (0, 1, 5, 40, 300):
            for i in range(4 if quick else 30):
                box = (corners(rng, n) if i % 2 else rand(rng, np.float32, (n, 4), -2, 2)).astype(t)
                score = rand(rng, t, (n,), -0.5, 1) if i % 3 else (rng.randint(0, 4, n) / 4).astype(t)
                for most in (0, 3, 30, 1000):
                    yield from each(box, score, most, rng.choice([0, 0.2, 0.5, 1.0]), rng.choice([-1, 0, 0.3]), rng.choice([0, 0.5, 1.5]),
                                    threshold=np.float32 if i == 1 else np.float16 if i == 2 else None)
    box, score = corners(rng, 6), rand(rng, np.float32, (6,), 0, 1)
    yield from each(box, np.array([np.nan, 1, np.inf, -np.inf, 0, 1], np.float32), 6, 0.5, 0.0)
    for a in ((box[0], score, 3, 0.5, 0.0), (box[:, :3], score, 3, 0.5, 0.0), (box, score[:5], 3, 0.5, 0.0), (box, score.reshape(2, 3), 3, 0.5, 0.0), (box, score, -1, 0.5, 0.0), (box, score, 3, -0.1, 0.0),
              (box, score, 3, 1.1, 0.0), (box, score, 3, np.nan, 0.0), (box, score, 3, 0.5, 0.0, -1.0), (box, score, [3], 0.5, 0.0), (box, score, 3, [0.5], 0.0) , (box, score, 3, 0.5, [0.0])):
        for c in each(*a) if not any(isinstance(v, list) for v in a) else ():
            yield c
    yield C(names[4], [box, score, np.int32(3), np.float32(0.5), np.float32(0), f32(1)])
    yield C(names[4], [box, score, i32(3), np.float32(0.5), np.float32(0), np.float32(1)])
    yield C(names[2], [box, score, np.int32(3), f32(0.5), np.float32(0)])
    yield C(names[2], [box, score, np.int32(3), np.float32(0.5), f32(0)])
    over = "NonMaxSuppressionWithOverlaps"
    for n in (0, 1, 7, 60):
        for i in range(4):
            yield C(over, [rand(rng, np.float32, (n, n), 0, 1), rand(rng, np.float32, (n,), 0, 1), np.int32(rng.randint(0, 20)), np.float32(rng.choice([-1, 0.2, 0.6, 2])), np.float32(0.1)])
    m = rand(rng, np.float32, (3, 3), 0, 1)
    ok = [np.int32(2), np.float32(0.5), np.float32(0)]
    for a, s in ((m[0], m[0]), (m[:2], m[0]), (m, m[0, :2]), (m, m)):
        yield C(over, [a, s, *ok])
    yield C(over, [m, m[0], np.int32(-1), np.float32(0.5), np.float32(0)])
    yield C(over, [m, m[0], np.int32(2), f32(0.5), np.float32(0)])


def cases_nms_combined(rng, quick):
    op = "CombinedNonMaxSuppression"
    for images, n, classes in ((2, 10, 3), (1, 40, 1), (3, 1, 2), (0, 4, 2), (2, 0, 2), (2, 60, 5), (1, 3, 0)):
        for q in sorted({1, classes} - ({0} if classes else set())):
            for most, total in ((1, 1), (3, 4), (20, 100), (100, 7)):
                for pad, clip in ((False, True), (True, False), (True, True), (False, False)):
                    box = rand(rng, np.float32, (images, n, q, 4), -0.2, 1.2) if clip else corners(rng, images, n, q)
                    score = rand(rng, np.float32, (images, n, classes), -2, 1) if most % 2 else rng.permutation(images * n * classes).reshape(images, n, classes).astype(np.float32) / 1000
                    yield C(op, [box, score, np.int32(most), np.int32(total), np.float32(rng.choice([0, 0.3, 1])), np.float32(rng.choice([-3, 0, 0.5]))], pad_per_class=pad, clip_boxes=clip)
    # boxes of one score: libstdc++'s heap decides, then which class comes first
    for i in range(10):
        yield C(op, [rand(rng, np.float32, (2, 9, 1, 4), 0, 1), rng.randint(0, 3, (2, 9, 1)).astype(np.float32), np.int32(9), np.int32(16), np.float32(0.4), np.float32(0.5)])
        yield C(op, [rand(rng, np.float32, (2, 9, 1, 4), 0, 1), rng.randint(0, 3, (2, 9, 5)).astype(np.float32), np.int32(3), np.int32(16), np.float32(0.4), np.float32(0.5)])
        yield C(op, [rand(rng, np.float32, (2, 30, 1, 4), 0, 1), rng.randint(0, 5, (2, 30, 7)).astype(np.float32), np.int32(9), np.int32(60), np.float32(0.4), np.float32(0.5)])
    b, s, good = corners(rng, 2, 5, 3), rand(rng, np.float32, (2, 5, 3), 0, 1), [np.int32(2), np.int32(4), np.float32(0.5), np.float32(0)]
    yield C(op, [b, s, *good])
    for x, y in ((b[:1], s), (b, s[:1]), (b, s[:, :4]), (b[:, :, :2], s), (b[..., :3], s)):
        yield C(op, [x, y, *good])
    for bad in ((0, np.int32(0)), (0, np.int32(-1)), (0, i32(2)), (1, np.int32(0)), (1, i32(2)), (2, np.float32(-0.1)), (2, np.float32(1.5)), (2, f32(0.5)), (3, f32(0.5))):
        a = list(good)
        a[bad[0]] = bad[1]
        yield C(op, [b, s, *a])
