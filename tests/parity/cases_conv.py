"""Convolutions and pooling, with their gradients.

A convolution's element is a sum of K products of numbers in [-1, 1]; the absolute tolerance is a fraction of K, so of the sum of magnitudes:
1e-6 for float (a dozen roundings), 1e-15·4 for double; halves are compared by their own precision.
"""
import numpy as np
import tensorflow as tf

from cases_math import BF16, FLOATS, rand
from kernels import Case as C

EPS = {np.float32: 1e-6, np.float64: 4e-15, np.float16: 2e-3, BF16: 2e-2, np.int32: 0}
REL = {np.float32: 1e-5, np.float64: 1e-12, np.float16: 1e-2, BF16: 5e-2, np.int32: 0}


def conv(op, t, inputs, k, **attrs):
    return C(op, inputs, tol=REL[t], atol=EPS[t] * max(k, 1), **attrs)


def values(rng, t, shape):
    return rand(rng, t, shape, -4, 4) if np.dtype(t).kind == "i" else rand(rng, t, shape, -1, 1)


def out_size(n, k, s, d, pad, before=0, after=0):
    reach = (k - 1) * d + 1
    return (n + s - 1) // s if pad == "SAME" else (n + (before + after if pad == "EXPLICIT" else 0) - reach + s) // s


def i32(*v):
    return np.array(v, np.int32)


def one_conv2d(rng, t, x, f, s, d, pad, ep=None):
    """The three kernels of one geometry, NHWC."""
    attrs = dict(strides=[1, s[0], s[1], 1], dilations=[1, d[0], d[1], 1], padding=pad, explicit_paddings=ep or [])
    b = [(ep or [0] * 8)[2 * i:2 * i + 2] for i in (1, 2)]
    o = (x[0],) + tuple(out_size(x[1 + i], f[i], s[i], d[i], pad, *b[i]) for i in (0, 1)) + (f[3],)
    vx, vf, vg = values(rng, t, x), values(rng, t, f), values(rng, t, o)
    yield conv("Conv2D", t, [vx, vf], f[0] * f[1] * f[2], **attrs)
    if x[3] == f[2] and d == (1, 1):  # TensorFlow without oneDNN has no other gradients
        yield conv("Conv2DBackpropInput", t, [i32(*x), vf, vg], f[0] * f[1] * f[3], **attrs)
        if t != np.int32:
            yield conv("Conv2DBackpropFilter", t, [vx, i32(*f), vg], o[0] * o[1] * o[2], **attrs)


def cases_conv2d(rng, quick):
    shapes = [((2, 5, 6, 3), (3, 3, 3, 4)), ((1, 1, 1, 1), (1, 1, 1, 1)), ((3, 7, 5, 2), (2, 3, 2, 5)), ((2, 8, 8, 16), (5, 5, 16, 8)), ((1, 9, 4, 1), (4, 1, 1, 3)),
              ((5, 6, 6, 8), (1, 1, 8, 16)), ((0, 5, 5, 2), (3, 3, 2, 2)), ((2, 6, 6, 4), (3, 3, 2, 6)), ((2, 5, 5, 32), (3, 3, 32, 32)), ((7, 12, 11, 3), (7, 7, 3, 24))]
    for t in FLOATS + [np.int32]:
        for x, f in shapes[:5] if quick and t != np.float32 else shapes:
            for pad in ("SAME", "VALID"):
                for s in ((1, 1), (2, 2), (1, 3), (3, 2)):
                    for d in ((1, 1), (2, 2), (1, 2)):
                        if quick and (s == (1, 3) or d == (1, 2)) or pad == "VALID" and (x[1] < (f[0] - 1) * d[0] + 1 or x[2] < (f[1] - 1) * d[1] + 1):
                            continue
                        yield from one_conv2d(rng, t, x, f, s, d, pad)
            yield from one_conv2d(rng, t, x, f, (1, 1), (1, 1), "EXPLICIT", [0, 0, 3, 2, 1, 4, 0, 0])
            yield from one_conv2d(rng, t, x, f, (2, 2), (1, 1), "EXPLICIT", [0, 0, 0, 3, 2, 2, 0, 0])
    for x, f in (((4, 12, 13, 32), (5, 5, 32, 48)), ((5, 17, 18, 32), (3, 3, 32, 32))):  # large enough for Winograd's way
        for pad in ("SAME", "VALID"):
            yield from one_conv2d(rng, np.float32, x, f, (1, 1), (1, 1), pad)
        yield from one_conv2d(rng, np.float32, x, f, (1, 1), (1, 1), "EXPLICIT", [0, 0, 2, 0, 1, 2, 0, 0])
    if not quick:
        yield from one_conv2d(rng, np.float32, (50, 28, 28, 1), (5, 5, 1, 32), (1, 1), (1, 1), "SAME")
        yield from one_conv2d(rng, np.float32, (10, 14, 14, 32), (5, 5, 32, 64), (1, 1), (1, 1), "SAME")
        yield from one_conv2d(rng, np.float32, (3, 20, 20, 48), (3, 3, 48, 40), (2, 2), (1, 1), "VALID")
    f32 = np.float32
    v = lambda *s: rand(rng, f32, s, -1, 1)
    ok = dict(strides=[1, 1, 1, 1], padding="SAME")
    # Sizes that TensorFlow refuses.
    yield C("Conv2D", [v(2, 5, 5), v(3, 3, 3, 4)], **ok)
    yield C("Conv2D", [v(2, 5, 5, 3), v(3, 3, 3)], **ok)
    yield C("Conv2D", [v(2, 5, 5, 3), v(3, 3, 2, 4)], **ok)
    yield C("Conv2D", [v(2, 5, 5, 4), v(3, 3, 2, 3)], **ok)
    yield C("Conv2D", [v(2, 5, 5, 3), v(3, 3, 0, 4)], **ok)
    yield C("Conv2D", [v(2, 5, 5, 3), v(3, 0, 3, 4)], **ok)
    yield C("Conv2D", [v(2, 5, 5, 3), v(3, 3, 3, 0)], **ok)
    yield C("Conv2D", [v(2, 2, 2, 3), v(4, 4, 3, 1)], strides=[1, 1, 1, 1], padding="VALID")
    for s in ([1, 1, 1], [1, 0, 1, 1], [1, 1, -1, 1], [2, 1, 1, 1], [1, 1, 1, 2], []):
        yield C("Conv2D", [v(2, 5, 5, 3), v(3, 3, 3, 4)], strides=s, padding="SAME")
    for d in ([1, 1, 1], [1, 0, 1, 1], [2, 1, 1, 1], [1, 1, 1, 2]):
        yield C("Conv2D", [v(2, 5, 5, 3), v(3, 3, 3, 4)], dilations=d, **ok)
    for e in ([0, 0, 1], [0, 0, -1, 1, 1, 1, 0, 0], [1, 0, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 0, 2]):
        yield C("Conv2D", [v(2, 5, 5, 3), v(3, 3, 3, 4)], strides=[1, 1, 1, 1], padding="EXPLICIT", explicit_paddings=e)
    yield C("Conv2D", [v(2, 5, 5, 3), v(3, 3, 3, 4)], explicit_paddings=[0, 0, 1, 1, 1, 1, 0, 0], **ok)
    yield C("Conv2DBackpropInput", [i32(2, 5, 5, 3), v(3, 3, 3, 4), v(2, 5, 5, 3)], **ok)
    yield C("Conv2DBackpropInput", [i32(2, 5, 5, 3), v(3, 3, 3, 4), v(2, 4, 5, 4)], **ok)
    yield C("Conv2DBackpropInput", [i32(3, 5, 5, 3), v(3, 3, 3, 4), v(2, 5, 5, 4)], **ok)
    yield C("Conv2DBackpropInput", [i32(2, 5, 5), v(3, 3, 3, 4), v(2, 5, 5, 4)], **ok)
    yield C("Conv2DBackpropInput", [i32(2, -5, 5, 3), v(3, 3, 3, 4), v(2, 5, 5, 4)], **ok)
    yield C("Conv2DBackpropInput", [i32(5, 5), v(3, 3, 3, 4), v(2, 5, 5, 4)], tol=1e-5, atol=1e-5, **ok)
    yield C("Conv2DBackpropFilter", [v(2, 5, 5, 3), i32(3, 3, 3), v(2, 5, 5, 4)], **ok)
    yield C("Conv2DBackpropFilter", [v(2, 5, 5, 3), i32(3, 3, 3, 4), v(2, 5, 5, 5)], **ok)
    yield C("Conv2DBackpropFilter", [v(2, 5, 5, 3), i32(3, 3, 3, 0), v(2, 5, 5, 0)], **ok)
    yield C("Conv2DBackpropFilter", [v(0, 5, 5, 3), i32(3, 3, 3, 2), v(0, 5, 5, 2)], **ok)


def cases_fused_conv(rng, quick):
    for t in (np.float32, np.float64):
        for x, f in (((2, 5, 6, 3), (3, 3, 3, 4)), ((3, 8, 8, 8), (1, 1, 8, 16))):
            vx, vf = values(rng, t, x), values(rng, t, f)
            b, s, o, m = (values(rng, t, f[3:]) for _ in range(4))
            var = rand(rng, t, f[3:], 0.5, 2)
            for act in ("", "Relu", "Relu6", "Elu", "LeakyRelu"):
                a = dict(T=tf.as_dtype(t), strides=[1, 1, 1, 1], padding="SAME", epsilon=0.001, leakyrelu_alpha=0.1)
                yield C("_FusedConv2D", [vx, vf, [b], []], tol=REL[t], atol=EPS[t] * 40, num_args=1, fused_ops=["BiasAdd"] + [act] * bool(act), **a)
                yield C("_FusedConv2D", [vx, vf, [s, o, m, var], []], tol=REL[t], atol=EPS[t] * 160, num_args=4, fused_ops=["FusedBatchNorm"] + [act] * bool(act), **a)
            yield C("_FusedConv2D", [vx, vf, [b], []], num_args=1, fused_ops=[], **a)
            yield C("_FusedConv2D", [vx, vf, [b[:1]], []], num_args=1, fused_ops=["BiasAdd"], code=3, **a)  # TensorFlow reads past its end


def cases_conv3d(rng, quick):
    for t in FLOATS:
        for x, f in (((2, 4, 5, 6, 3), (2, 3, 3, 3, 4)), ((1, 3, 3, 3, 8), (1, 1, 1, 8, 8)), ((2, 5, 4, 4, 1), (3, 2, 2, 1, 5)), ((0, 3, 3, 3, 2), (2, 2, 2, 2, 2))):
            for pad in ("SAME", "VALID"):
                for s in ((1, 1, 1), (2, 1, 2)):
                    attrs = dict(strides=[1, *s, 1], padding=pad)
                    o = (x[0],) + tuple(out_size(x[1 + i], f[i], s[i], 1, pad) for i in range(3)) + (f[4],)
                    vx, vf, vg = values(rng, t, x), values(rng, t, f), values(rng, t, o)
                    yield conv("Conv3D", t, [vx, vf], f[0] * f[1] * f[2] * f[3], **attrs)
                    yield conv("Conv3DBackpropInputV2", t, [i32(*x), vf, vg], f[0] * f[1] * f[2] * f[4], **attrs)
                    yield conv("Conv3DBackpropFilterV2", t, [vx, i32(*f), vg], o[0] * o[1] * o[2] * o[3], **attrs)
                    if t != BF16 and s == (1, 1, 1):
                        yield conv("Conv3DBackpropInput", t, [vx, vf, vg], f[0] * f[1] * f[2] * f[4], like=C("Conv3DBackpropInputV2", [i32(*x), vf, vg], **attrs), **attrs)
                        yield conv("Conv3DBackpropFilter", t, [vx, vf, vg], o[0] * o[1] * o[2] * o[3], like=C("Conv3DBackpropFilterV2", [vx, i32(*f), vg], **attrs), **attrs)
    v = lambda *s: rand(rng, np.float32, s, -1, 1)
    yield C("Conv3D", [v(2, 4, 4, 4), v(2, 2, 2, 1, 1)], strides=[1] * 5, padding="SAME")
    yield C("Conv3D", [v(2, 4, 4, 4, 3), v(2, 2, 2, 2, 1)], strides=[1] * 5, padding="SAME")
    yield C("Conv3D", [v(2, 4, 4, 4, 3), v(2, 2, 2, 3, 1)], strides=[1, 0, 1, 1, 1], padding="SAME")


def cases_conv(rng, quick):
    for t in FLOATS + [np.int32]:
        for x, f in (((2, 5, 6, 3), (3, 3, 3, 4)), ((1, 6, 4, 8), (1, 1, 8, 5)), ((2, 4, 5, 6, 3), (2, 3, 3, 3, 4)), ((1, 3, 3, 3, 2), (3, 3, 3, 2, 2)), ((2, 3, 2, 0), (2, 2, 0, 1))):
            space = len(f) - 2
            for pad in ("SAME", "VALID"):
                for s, d in ((1, 1), (2, 1), (1, 2)):
                    if d > 1 and (space == 3 or pad == "VALID"):  # TensorFlow dilates no volumes
                        continue
                    vx, vf, k = values(rng, t, x), values(rng, t, f), int(np.prod(f[:-1]))
                    a = dict(strides=[1] + [s] * space + [1], padding=pad)
                    yield conv("Conv", t, [vx, vf], k, dilations=[1] + [d] * space + [1] if d > 1 else [], **a)
                    yield conv("Conv", t, [np.stack([vx, vx[::-1]])[None], vf], k, batch_dims=3, **a)
                    yield conv("Conv", t, [vx[0], vf], k, batch_dims=0, **a)
            if space == 2:
                yield conv("Conv", t, [vx, vf], k, strides=[1, 2, 1, 1], padding="EXPLICIT", explicit_paddings=[0, 0, 3, 2, 1, 4, 0, 0])
    v = lambda *s: rand(rng, np.float32, s, -1, 1)
    ok = dict(strides=[1] * 4, padding="SAME")
    x, f = v(2, 5, 5, 4), v(3, 3, 4, 4)
    for bad in ([v(2, 5, 4), f], [v(1, 1, 2, 5, 5, 4), f], [x, v(3, 3, 4)], [x, v(3, 3, 3, 4)], [x, v(3, 3, 2, 4)], [x, v(3, 0, 4, 4)], [x, v(3, 3, 0, 4)], [x, v(3, 3, 4, 0)],
                [x, v(3, 3, 3, 4, 4)]):
        yield C("Conv", bad, **ok)
    for b in (-1, 2, 4):
        yield C("Conv", [x, f], batch_dims=b, **ok)
    for g in (-1, 0, 3):
        yield C("Conv", [x, f], groups=g, **ok)
    yield C("Conv", [x, v(3, 3, 2, 4)], groups=2, **ok)
    for s in ([1, 1, 1], [1] * 5, [2, 1, 1, 1], [1, 1, 1, 2], [1, 0, 1, 1], [1, 1, -1, 1]):
        yield C("Conv", [x, f], strides=s, padding="SAME")
        yield C("Conv", [x, f], dilations=s, **ok)
    for e in ([], [0, 0, 1, 1, 1, 1], [1, 0, 1, 1, 1, 1, 0, 0], [0, 0, -1, 1, 1, 1, 0, 0]):
        yield C("Conv", [x, f], strides=[1] * 4, padding="EXPLICIT", explicit_paddings=e)
    yield C("Conv", [x, f], explicit_paddings=[0, 0, 1, 1, 1, 1, 0, 0], **ok)
    yield C("Conv", [v(1, 3, 3, 3, 1), v(2, 2, 2, 1, 1)], strides=[1] * 5, padding="EXPLICIT", explicit_paddings=[0, 0, 1, 1, 1, 1, 1, 1, 0, 0],
            code=3)  # TensorFlow's shape rule; its kernel computes something
    yield C("Conv", [v(2, 2, 2, 3), v(4, 4, 3, 1)], strides=[1] * 4, padding="VALID")
    yield C("Conv", [v(1, 3, 3, 1), v(2, 2, 1, 1)], strides=[1] * 4, padding="SAME", batch_dims=2 ** 40, code=3)
    yield C("Conv", [v(1, 3, 3, 1), v(1, 1, 1, 1)], strides=[1, 2 ** 31, 1, 1], padding="SAME", code=3)


def cases_mirrored_conv(rng, quick):
    """One image at a time: TensorFlow convolves the first one of a batch again and again."""
    for t in FLOATS:
        for x, f in (((1, 5, 6, 3), (3, 3, 3, 4)), ((1, 4, 4, 8), (1, 1, 8, 5)), ((1, 9, 3, 1), (4, 2, 1, 2))):
            for mode in ("REFLECT", "SYMMETRIC"):
                for pad in ("SAME", "VALID"):
                    for s in ((1, 1), (2, 3), (4, 5)):
                        vx, vf, k = values(rng, t, x), values(rng, t, f), f[0] * f[1] * f[2]
                        a = dict(mode=mode, strides=[1, *s, 1], padding=pad)
                        for b in ([[0, 0], [2, 1], [0, 2], [0, 0]], [[0, 0], [0, 0], [1, 1], [0, 0]]):
                            b = np.array(b, np.int32)
                            yield conv("FusedPadConv2D", t, [vx, b, vf], k, **a)
                            if t == BF16:
                                continue
                            for size in (i32(7, 5), i32(4, 9)) if quick else (i32(7, 5), i32(4, 9), i32(*x[1:3]), i32(20, 31)):
                                yield conv("FusedResizeAndPadConv2D", t, [vx, size, b, vf], 4 * k, resize_align_corners=bool(s[0] == 2), **a)
    v = lambda *s: rand(rng, np.float32, s, -1, 1)
    a = dict(mode="REFLECT", strides=[1] * 4, padding="SAME")
    none = np.zeros((4, 2), np.int32)
    x, f = v(1, 5, 5, 2), v(3, 3, 2, 4)
    edge = lambda i, n: np.array([[n * (r == i)] * 2 for r in range(4)], np.int32)
    for b in (edge(0, 1), edge(3, 1), edge(1, 5), edge(1, 6), edge(2, -1), none[:3], none[:, :1], none.reshape(8), np.zeros((5, 2), np.int32)):
        for mode in ("REFLECT", "SYMMETRIC"):
            yield C("FusedPadConv2D", [x, b, f], tol=1e-5, atol=1e-4, **dict(a, mode=mode))
            yield C("FusedResizeAndPadConv2D", [x, i32(5, 5), b, f], tol=1e-5, atol=1e-4, **dict(a, mode=mode))
    for bad in ([v(1, 5, 5, 3), none, f], [x, none, v(3, 3, 2)], [x[:0], none, f], [x, none, v(3, 3, 2, 0)]):
        yield C("FusedPadConv2D", bad, **a)
    yield C("FusedPadConv2D", [x[0], none, f], code=3, **a)  # TensorFlow aborts
    for size in (i32(0, 5), i32(5, -1), i32(5), i32(5, 5, 5), np.array([[5, 5]], np.int32), i32(1 << 30, 1 << 30), i32(3, 1 << 24)):
        yield C("FusedResizeAndPadConv2D", [x, size, none, f], **a)
    yield C("FusedResizeAndPadConv2D", [np.repeat(x, 8, 0), i32(2 ** 31 - 1, 2 ** 31 - 1), none, f], **a)
    for s in ([2, 1, 1, 1], [1, 1, 1, 2], [1, 0, 1, 1], [1, 1, 1]):
        yield C("FusedPadConv2D", [x, none, f], **dict(a, strides=s))
    yield C("FusedPadConv2D", [x, none, v(6, 6, 2, 1)], **dict(a, padding="VALID"))
    yield C("FusedPadConv2D", [v(1, 3, 3, 1000), none, v(80, 80, 1000, 1)], **a)


POOL_TYPES = [np.float32, np.float64, np.float16, BF16, np.int32, np.int64, np.int16, np.int8, np.uint8, np.uint16]


def pool_values(rng, t, shape):
    """Whole numbers, so that there are ties."""
    return rng.randint(0, 10, shape).astype(t)


def cases_pool(rng, quick):
    shapes = [((2, 5, 6, 3), (2, 2)), ((1, 1, 1, 1), (1, 1)), ((3, 7, 7, 70), (3, 2)), ((2, 6, 6, 16), (2, 2)), ((0, 4, 4, 2), (2, 2)), ((2, 9, 3, 5), (4, 3))]
    for t in POOL_TYPES[::3] if quick else POOL_TYPES:
        for x, ks in shapes:
            for pad in ("SAME", "VALID", "EXPLICIT"):
                for s in ((1, 1), (2, 2), (3, 1)):
                    ep = [0, 0, ks[0] - 1, 0, 0, ks[1] - 1, 0, 0] if pad == "EXPLICIT" else []
                    o = (x[0], out_size(x[1], ks[0], s[0], 1, pad, ks[0] - 1, 0), out_size(x[2], ks[1], s[1], 1, pad, 0, ks[1] - 1), x[3])
                    a = dict(ksize=[1, *ks, 1], strides=[1, *s, 1], padding=pad)
                    vx = pool_values(rng, t, x)
                    yield C("MaxPool", [vx], explicit_paddings=ep, **a)
                    vg = pool_values(rng, t, o)
                    yield C("MaxPoolGrad", [vx, np.zeros(o, t) if pad == "EXPLICIT" else tf.nn.max_pool2d(tf.cast(vx, tf.float64), ks, s, pad).numpy().astype(t), vg],
                            explicit_paddings=ep, **a)
                    if pad == "EXPLICIT":
                        continue
                    y = tf.nn.max_pool2d(tf.cast(vx, tf.float64), ks, s, pad).numpy().astype(t)
                    yield C("MaxPoolGradGrad", [vx, y, pool_values(rng, t, x)], **a)
                    yield C("MaxPoolGradGradV2", [vx, y, pool_values(rng, t, x), i32(1, *ks, 1), i32(1, *s, 1)], padding=pad)
                    yield C("MaxPoolV2", [vx, i32(1, *ks, 1), i32(1, *s, 1)], padding=pad)
                    yield C("MaxPoolGradV2", [vx, y, vg, i32(1, *ks, 1), i32(1, *s, 1)], padding=pad)
                    for batch in (False, True):
                        yield C("MaxPoolWithArgmax", [vx], include_batch_in_index=batch, **a)
                        if x[0] and t in (np.float32, np.float64, np.int32):
                            at = tf.nn.max_pool_with_argmax(tf.constant(vx.astype(np.float32)), ks, s, pad, include_batch_in_index=batch)[1].numpy()
                            yield C("MaxPoolGradWithArgmax", [vx, vg, at], include_batch_in_index=batch, **a)
                    if t in FLOATS:
                        r = rand(rng, t, x, -1, 1)
                        yield C("AvgPool", [r], tol=REL[t], atol=EPS[t], **a)
                        yield C("AvgPoolGrad", [i32(*x), rand(rng, t, o, -1, 1)], tol=REL[t], atol=EPS[t] * 8, **a)
    v = lambda *s: rand(rng, np.float32, s, -1, 1)
    a = dict(ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    yield C("MaxPool", [v(2, 4, 4, 6)], ksize=[1, 1, 1, 3], strides=[1, 1, 1, 3], padding="SAME")
    yield C("MaxPool", [v(2, 4, 4, 6)], ksize=[1, 1, 1, 4], strides=[1, 1, 1, 4], padding="SAME")
    yield C("MaxPool", [v(2, 4, 4, 6)], ksize=[1, 2, 1, 3], strides=[1, 1, 1, 3], padding="SAME")
    for op in ("MaxPool", "AvgPool", "MaxPoolWithArgmax"):
        yield C(op, [v(2, 4, 4)], **a)
        yield C(op, [v(2, 4, 4, 3)], ksize=[2, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
        yield C(op, [v(2, 4, 4, 3)], ksize=[1, 2, 2, 1], strides=[2, 2, 2, 1], padding="SAME")
        yield C(op, [v(2, 4, 4, 3)], ksize=[1, 0, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
        yield C(op, [v(2, 4, 4, 3)], ksize=[1, 2, 2, 1], strides=[1, 0, 2, 1], padding="SAME", code=3)
        yield C(op, [v(2, 4, 4, 3)], ksize=[1, 2, 2, 1, 1], strides=[1, 1, 2, 1], padding="SAME")
        yield C(op, [v(2, 2, 2, 3)], ksize=[1, 4, 4, 1], strides=[1, 1, 1, 1], padding="VALID")
    yield C("MaxPool", [v(2, 4, 4, 3)], ksize=[1, 2, 2, 1], strides=[1, 1, 1, 1], padding="EXPLICIT", explicit_paddings=[0, 0, 2, 0, 0, 0, 0, 0])
    yield C("MaxPoolGrad", [v(2, 4, 4, 3), v(2, 2, 2, 2), v(2, 2, 2, 3)], **a)
    yield C("MaxPoolGrad", [v(2, 4, 4, 3), v(2, 2, 2, 3), v(2, 2, 3, 3)], **a)
    yield C("MaxPoolGradWithArgmax", [v(1, 2, 2, 1), v(1, 1, 1, 1), np.array([[[[9]]]], np.int64)], code=3, **a)  # TensorFlow aborts
    yield C("AvgPoolGrad", [i32(2, 4, 4), v(2, 2, 2, 3)], **a)
    over = dict(padding="SAME", ksize=[1, 2, 2, 1], strides=[1, 2, 2, 3])  # steps over channels, of a window that is one wide
    yield C("AvgPool", [v(2, 4, 4, 3)], tol=1e-6, **over)
    yield C("AvgPoolGrad", [i32(2, 4, 4, 3), v(2, 2, 2, 3)], tol=1e-6, **over)
    yield C("AvgPoolGrad", [i32(11, 9, 7, 9), v(16, 16, 16, 16)], **over)
    yield C("MaxPoolWithArgmax", [v(2, 4, 4, 3)], padding="SAME", ksize=[1, 1, 1, 3], strides=[1, 1, 1, 3])
    for pads in ([0, 0, 0, 1, 0, 2, 0, 0], [0, 0, 2, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0, 0, 0]):
        yield C("MaxPool", [v(1, 3, 3, 1)], padding="EXPLICIT", ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], explicit_paddings=pads)
    yield C("AvgPoolGrad", [i32(2, 4, 4, 3), v(2, 2, 3, 3)], code=3, **a)  # TensorFlow computes something


def cases_pool3d(rng, quick):
    for t in (np.float32,):  # TensorFlow has no others on CPUs
        for x, ks in (((2, 4, 5, 6, 3), (2, 2, 2)), ((1, 3, 3, 3, 9), (1, 3, 2)), ((2, 5, 4, 4, 1), (3, 2, 2))):
            for pad in ("SAME", "VALID"):
                for s in ((1, 1, 1), (2, 2, 2), (1, 2, 1)):
                    o = (x[0],) + tuple(out_size(x[1 + i], ks[i], s[i], 1, pad) for i in range(3)) + (x[4],)
                    a = dict(ksize=[1, *ks, 1], strides=[1, *s, 1], padding=pad)
                    r, g = rand(rng, t, x, -1, 1), rand(rng, t, o, -1, 1)
                    yield C("AvgPool3D", [r], tol=REL[t], atol=EPS[t], **a)
                    yield C("AvgPool3DGrad", [i32(*x), g], tol=REL[t], atol=EPS[t] * 8, **a)
                    vx = pool_values(rng, t, x)
                    yield C("MaxPool3D", [vx], **a)
                    y = tf.nn.max_pool3d(tf.cast(vx, tf.float32), ks, s, pad).numpy().astype(t)
                    vg = pool_values(rng, t, o)
                    yield C("MaxPool3DGrad", [vx, y, vg], TInput=tf.as_dtype(t), **a)
                    yield C("MaxPool3DGradGrad", [vx, y, pool_values(rng, t, x)], **a)


def cases_fractional(rng, quick):
    """The same seeds, the same windows: all of it is equal, not close."""
    shapes = [((2, 7, 9, 3), (1.5, 1.25)), ((1, 30, 20, 2), (1.44, 2.3)), ((3, 4, 4, 70), (1, 1)), ((1, 2, 3, 1), (1.9, 3)), ((2, 23, 50, 1), (2.3, 7.7)), ((1, 8, 8, 4), (2, 4))]
    seed = 0
    for t in (np.float32, np.float64, np.int32, np.int64):
        for x, r in shapes:
            for pseudo in (False, True):
                for overlap in (False, True):
                    seed += 1
                    a = dict(pooling_ratio=[1.0, *map(float, r), 1.0], pseudo_random=pseudo, overlapping=overlap, deterministic=True, seed=seed, seed2=1 << 33 | seed)
                    vx = pool_values(rng, t, x)
                    for kind in ("Max", "Avg"):
                        yield C("Fractional%sPool" % kind, [vx], tol=0, **a)
                    y, rows, cols = (v.numpy() for v in tf.raw_ops.FractionalMaxPool(value=vx, **a))
                    g = (rand(rng, np.float64, y.shape, -1, 1) * 100).astype(t)
                    yield C("FractionalMaxPoolGrad", [vx, y, g, rows, cols], overlapping=overlap, tol=0)
                    yield C("FractionalAvgPoolGrad", [np.array(x), g, rows, cols], overlapping=overlap, tol=0)
    v = lambda *s: rand(rng, np.float32, s, -1, 1)
    yield C("FractionalMaxPool", [np.full((1, 2, 2, 1), -np.inf, np.float32)], pooling_ratio=[1.0, 2.0, 2.0, 1.0], tol=0)
    for op in ("FractionalMaxPool", "FractionalAvgPool"):
        yield C(op, [v(1, 5, 5, 1)], pooling_ratio=[1.0, 1.5, 1.5, 1.0], check=lambda want, got: None)  # at random
        for x, r in (((2, 5, 5), (1, 2, 2, 1)), ((2, 5, 5, 3), (1, 2, 2)), ((2, 5, 5, 3), (1, 2, 2, 1, 1)), ((2, 5, 5, 3), (2, 2, 2, 1)), ((2, 5, 5, 3), (1, 2, 2, 3)),
                     ((2, 5, 5, 3), (1, 0.5, 2, 1)), ((2, 5, 5, 3), (1, -1, 2, 1)), ((2, 5, 5, 3), (1, 2, 5.5, 1)), ((0, 5, 5, 3), (1, 2, 2, 1)), ((2, 5, 5, 0), (1, 2, 2, 1)),
                     ((2, 0, 5, 1), (1, 2, 2, 1)), ((2, 5, 5, 3), (1, float("inf"), 2, 1)), ((2, 5, 5, 3), (1, float("nan"), 2, 1))):
            yield C(op, [v(*x)], pooling_ratio=[float(n) for n in r])
        yield C(op, [v(2, 5, 5, 3)], pooling_ratio=[1.0, 2.0, 2.0, 1.0], seed=4)
    l = lambda *n: np.array(n, np.int64)
    x, m = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1), np.array([5, 7, 13, 15], np.float32).reshape(1, 2, 2, 1)
    ok = [x, m, m, l(0, 2, 4), l(0, 2, 4)]
    yield C("FractionalMaxPoolGrad", ok, tol=0)
    for i, bad in ((0, x[0]), (0, x[:, :0]), (1, m[0]), (1, m[:0]), (1, m + 1), (3, l(0, 2, 3)), (3, l(0, 2)), (3, l()), (4, l(0, 0, 4)), (3, l(0, 2, 4)[None]), (4, l(*range(9)))):
        yield C("FractionalMaxPoolGrad", [bad if i == j else v for j, v in enumerate(ok)])
    for i, bad in ((0, np.repeat(x, 2, 3)), (2, np.repeat(m, 2, 0)), (3, l(-1, 2, 4)), (3, l(0, -2 ** 63, 4)), (3, l(0, 2 ** 63 - 1, 4)), (4, l(0, 2, 4, 4))):
        yield C("FractionalMaxPoolGrad", [bad if i == j else v for j, v in enumerate(ok)], code=3)  # TensorFlow reads or writes outside
    ok = [l(1, 4, 4, 1), m, l(0, 2, 4), l(0, 2, 4)]
    for rows in (l(0, 2, 4), l(0, 2, 4, 9), l(3, 1, 4), l(9, 9, 9), l(1, 2, 2 ** 63 - 1), l(0, 0, 4), l(-1, 2, 4), l(0, -3, 4), l(0, 2), l()):
        for overlap in (False, True):
            yield C("FractionalAvgPoolGrad", [ok[0], m, rows, ok[3]], overlapping=overlap, tol=0)
            yield C("FractionalAvgPoolGrad", [ok[0], m, ok[2], rows], overlapping=overlap, tol=0)
    for i, bad in ((0, l(1, 4, 4)), (0, l(1, 4, 4, 1, 1)), (0, ok[0][None]), (0, l(0, 4, 4, 1)), (0, l(1, 4, 0, 1)), (0, l(1, -4, 4, 1)), (0, l(2 ** 62, 2 ** 62, 4, 1)), (1, m[0]), (1, m[:0])):
        yield C("FractionalAvgPoolGrad", [bad if i == j else v for j, v in enumerate(ok)])
    yield C("FractionalAvgPoolGrad", [l(3, 4, 4, 1), *ok[1:]], tol=0)
    for dims in (l(1, 4, 4, 2), l(1, 4, 4, 3)):
        yield C("FractionalAvgPoolGrad", [dims, np.repeat(m, 2, 0 if dims[3] == 2 else 3), *ok[2:]], code=3)  # TensorFlow writes outside
    big = np.full((1, 2, 2, 1), 2 ** 31 - 1, np.int32)
    yield C("FractionalAvgPoolGrad", [l(1, 2, 2, 1), big, l(0, 1, 2), l(0, 1, 2)], overlapping=True, tol=0)


def cases_depthwise(rng, quick):
    for t in FLOATS:
        for x, f in (((2, 5, 6, 3), (3, 3, 3, 1)), ((2, 6, 5, 8), (2, 3, 8, 2)), ((1, 7, 7, 32), (3, 3, 32, 1)), ((0, 5, 5, 2), (3, 3, 2, 2)), ((3, 4, 4, 1), (1, 1, 1, 5))):
            for pad in ("SAME", "VALID", "EXPLICIT"):
                for s in (1, 2):
                    ep = [0, 0, 1, 2, 0, 1, 0, 0] if pad == "EXPLICIT" else []
                    a = dict(strides=[1, s, s, 1], padding=pad, explicit_paddings=ep)
                    o = (x[0], out_size(x[1], f[0], s, 1, pad, 1, 2), out_size(x[2], f[1], s, 1, pad, 0, 1), f[2] * f[3])
                    vx, vf, vg = values(rng, t, x), values(rng, t, f), values(rng, t, o)
                    yield conv("DepthwiseConv2dNative", t, [vx, vf], f[0] * f[1], **a)
                    yield conv("DepthwiseConv2dNativeBackpropInput", t, [i32(*x), vf, vg], f[0] * f[1] * f[3], **a)
                    if x[0]:  # else TensorFlow leaves the result unset
                        yield conv("DepthwiseConv2dNativeBackpropFilter", t, [vx, i32(*f), vg], o[0] * o[1] * o[2], **a)
    v = lambda *s: rand(rng, np.float32, s, -1, 1)
    op = "DepthwiseConv2dNative"
    yield C(op, [v(2, 5, 5, 3), v(3, 3, 2, 1)], strides=[1, 1, 1, 1], padding="SAME")
    yield C(op, [v(2, 5, 5, 3), v(3, 3, 3, 1)], strides=[1, 1, 2, 1], padding="SAME")
    yield C(op, [v(2, 5, 5, 3), v(3, 3, 3, 1)], strides=[1, 1, 1, 2], padding="SAME")
    yield C(op, [v(2, 5, 5), v(3, 3, 3, 1)], strides=[1, 1, 1, 1], padding="SAME")
    yield C(op, [v(2, 5, 5, 3), v(3, 3, 3, 1)], strides=[1, 1, 1], padding="SAME")


NORM = {np.float32: (1e-5, 2e-5), np.float16: (4e-3, 4e-3), BF16: (2e-2, 3e-2)}


def cases_batch_norm(rng, quick):
    f = np.float32
    for t in (np.float32, np.float16, BF16):
        for x in ((2, 3, 4, 5), (1, 1, 1, 3), (4, 6, 6, 16), (5, 2, 2, 1), (0, 3, 3, 2), (3, 40, 30, 3)):
            for fmt in ("NHWC", "NCHW"):
                c = x[3] if fmt == "NHWC" else x[1]
                for training in (True, False):
                    vx = rand(rng, t, x, -2, 3)
                    s, o, m = (rand(rng, f, (c,), -2, 2) for _ in range(3))
                    v = rand(rng, f, (c,), 0.1, 2)
                    tol, atol = NORM[t]
                    checked = 3 if not training or not vx.size else 5  # the rest is left unset by TensorFlow

                    def close(want, got, n=checked, tol=tol, atol=atol):
                        for i in range(n):
                            a, b = np.asarray(want[i]).astype(np.float64), got[i].astype(np.float64)
                            if a.shape != b.shape or not np.allclose(a, b, tol, atol, equal_nan=True):
                                return "output %d: %s, TensorFlow %s" % (i, b, a)
                        return None if [np.asarray(w).shape for w in want] == [g.shape for g in got] else "shapes"
                    for factor in (1.0, 0.25):
                        a = dict(epsilon=0.01, is_training=training, data_format=fmt, exponential_avg_factor=factor, check=close)
                        if t == np.float32:
                            yield C("FusedBatchNorm", [vx, s, o, m, v], **a)
                        yield C("FusedBatchNormV2", [vx, s, o, m, v], U=tf.float32, **a)
                        yield C("FusedBatchNormV3", [vx, s, o, m, v], U=tf.float32, **a)
                    if fmt == "NCHW" and not training:
                        continue  # TensorFlow refuses
                    g = rand(rng, t, x, -1, 1)
                    n = max(vx.size // max(c, 1), 1)
                    a = dict(epsilon=0.01, is_training=training, data_format=fmt, tol=tol, atol=atol * max(1, n ** 0.5))
                    if t == np.float32:
                        yield C("FusedBatchNormGrad", [g, vx, s, m, v], **a)
                    yield C("FusedBatchNormGradV2", [g, vx, s, m, v], U=tf.float32, **a)
                    yield C("FusedBatchNormGradV3", [g, vx, s, m, v, np.zeros((), f)], U=tf.float32, **a)
    r = lambda *s: rand(rng, f, s, 0.5, 1)
    for fmt, x in (("NDHWC", (2, 2, 3, 3, 4)), ("NCDHW", (2, 4, 2, 3, 3))):
        yield C("FusedBatchNormV3", [r(*x), r(4), r(4), r(0), r(0)], U=tf.float32, data_format=fmt, tol=1e-4, atol=1e-4)
        yield C("FusedBatchNormGradV3", [r(*x), r(*x), r(4), r(4), r(4), r()], U=tf.float32, data_format=fmt, tol=1e-4, atol=1e-4)
    op = "FusedBatchNormV3"
    yield C(op, [r(2, 3, 4), r(4), r(4), r(4), r(4)], U=tf.float32)
    yield C(op, [r(2, 2, 3, 4), r(3), r(4), r(4), r(4)], U=tf.float32)
    yield C(op, [r(2, 2, 3, 4), r(4), r(3), r(4), r(4)], U=tf.float32)
    yield C(op, [r(2, 2, 3, 4), r(4), r(4), r(3), r(4)], U=tf.float32, is_training=False)
    yield C(op, [r(2, 2, 3, 4), r(4), r(4), r(4), r(2)], U=tf.float32, exponential_avg_factor=0.5)
    yield C(op, [r(2, 2, 3, 4), r(4, 1), r(4), r(4), r(4)], U=tf.float32)
    yield C("FusedBatchNormGradV3", [r(2, 2, 3, 4), r(2, 2, 3, 3), r(4), r(4), r(4), r()], U=tf.float32)
    yield C("FusedBatchNormGradV3", [r(2, 2, 3, 4), r(2, 2, 3, 4), r(4), r(3), r(4), r()], U=tf.float32)


def cases_lrn(rng, quick):
    for t in (np.float32, np.float16):
        tol, atol = {np.float32: (1e-5, 1e-5), np.float16: (1e-2, 1e-2), BF16: (6e-2, 6e-2)}[t]
        for x in ((2, 3, 4, 5), (1, 2, 2, 20), (2, 1, 1, 1), (0, 2, 2, 3), (1, 2, 2, 200)):
            for r in (0, 1, 5, 30):
                a = dict(depth_radius=r, bias=1.5, alpha=0.3, beta=0.6, tol=tol, atol=atol)
                vx = rand(rng, t, x, -2, 2)
                yield C("LRN", [vx], **a)
                if t == np.float32:
                    y = tf.nn.lrn(vx, r, 1.5, 0.3, 0.6).numpy()
                    yield C("LRNGrad", [rand(rng, t, x, -1, 1), vx, y], **a)
    v = lambda *s: rand(rng, np.float32, s, -1, 1)
    yield C("LRN", [v(2, 3, 4)])
    yield C("LRNGrad", [v(2, 3, 4, 5), v(2, 3, 4, 5), v(2, 3, 4, 4)])


def cases_extreme(rng, quick):
    """Numbers that fit the attrs and nothing else."""
    v = lambda *s: rand(rng, np.float32, s, -1, 1)
    big = 2 ** 31 - 1
    yield C("Conv2D", [v(1, 3, 3, 1), v(1, 1, 1, 2)], strides=[1, big, big, 1], padding="SAME", tol=1e-5)
    yield C("Conv2D", [v(1, 3, 3, 1), v(2, 2, 1, 2)], strides=[1, 1, 1, 1], dilations=[1, big, big, 1], padding="SAME", tol=1e-5, atol=1e-6)
    yield C("Conv2D", [v(1, 3, 3, 1), v(2, 2, 1, 2)], strides=[1, 1, 1, 1], dilations=[1, big, 1, 1], padding="VALID", code=3)
    yield C("Conv2D", [v(1, 3, 3, 1), v(1, 1, 1, 1)], strides=[1, 2 ** 31, 1, 1], padding="SAME", code=3)
    yield C("MaxPool", [v(1, 3, 3, 1)], ksize=[1, big, big, 1], strides=[1, big, big, 1], padding="SAME")
    yield C("AvgPool", [v(1, 3, 3, 1)], ksize=[1, big, big, 1], strides=[1, 1, 1, 1], padding="SAME", tol=1e-5, atol=1e-6)
    yield C("Conv2D", [v(1, 9, 9, 1), v(2, 2, 1, 1)], strides=[1, 1, 1, 1], padding="EXPLICIT", explicit_paddings=[0, 0, 40, 50, 60, 30, 0, 0], tol=1e-5, atol=1e-6)
