"""What TensorFlow's plain CPU kernels refuse and ours take: channels first, gradients of dilated and grouped convolutions. Judged by what must hold."""
import numpy as np
import pytest

import kernels
from kernels import Case as C

X = (3, 7, 6, 8)
ONE = dict(strides=[1, 1, 1, 1], padding="SAME")


@pytest.fixture(scope="module")
def ours():
    o = kernels.Ours(kernels.find_runop())

    def run(op, inputs, **attrs):
        code, msg, outs, _ = o.run(C(op, inputs, **attrs))
        assert code == 0, "%s: %s" % (op, msg)
        return outs[0]
    yield run
    o.close()


def numbers(*shape):
    return np.random.RandomState(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def first(x):
    return np.ascontiguousarray(np.moveaxis(x, -1, 1))


def shape(*dims):
    return np.array(dims, np.int32)


def same(nchw, nhwc):
    assert np.array_equal(np.moveaxis(nchw, 1, -1), nhwc)


def test_convolution_channels_first(ours):
    last, nchw = dict(strides=[1, 2, 1, 1], padding="SAME"), dict(strides=[1, 1, 2, 1], padding="SAME", data_format="NCHW")
    x, f = numbers(*X), numbers(3, 2, 8, 5)
    y = ours("Conv2D", [x, f], **last)
    same(ours("Conv2D", [first(x), f], **nchw), y)
    any_dims = dict(nchw, data_format="CHANNELS_FIRST")
    same(ours("Conv", [first(x), f], **any_dims), y)
    same(ours("Conv", [first(x)[None], f], batch_dims=2, **any_dims)[0], y)
    g = numbers(*y.shape)
    same(ours("Conv2DBackpropInput", [shape(3, 8, 7, 6), f, first(g)], **nchw), ours("Conv2DBackpropInput", [shape(*X), f, g], **last))
    a, b = (ours("Conv2DBackpropFilter", v, **t) for v, t in (([x, shape(*f.shape), g], last), ([first(x), shape(*f.shape), first(g)], nchw)))
    assert np.array_equal(a, b)
    h, e = x.astype(np.float16), f.astype(np.float16)
    same(ours("Conv2D", [first(h), e], **nchw), ours("Conv2D", [h, e], **last))
    d = numbers(3, 3, 8, 2)
    same(ours("DepthwiseConv2dNative", [first(x), d], data_format="NCHW", **ONE), ours("DepthwiseConv2dNative", [x, d], **ONE))


def test_pooling_channels_first(ours):
    last = dict(ksize=[1, 2, 3, 1], strides=[1, 2, 1, 1], padding="SAME")
    nchw = dict(ksize=[1, 1, 2, 3], strides=[1, 1, 2, 1], padding="SAME", data_format="NCHW")
    x = numbers(*X)
    for op in ("MaxPool", "AvgPool"):
        same(ours(op, [first(x)], **nchw), ours(op, [x], **last))
    m = ours("MaxPool", [x], **last)
    g = numbers(*m.shape)
    same(ours("MaxPoolGrad", [first(x), first(m), first(g)], **nchw), ours("MaxPoolGrad", [x, m, g], **last))


@pytest.mark.parametrize("dilation,groups", [(2, 1), (1, 2), (2, 4), (1, 8)])
def test_gradients_are_adjoint(ours, dilation, groups):
    """<conv(x, f), g> = <x, dx> = <f, df> in double; float agrees with double."""
    a = dict(dilations=[1, dilation, dilation, 1], **ONE)
    x, f = numbers(*X).astype(np.float64), numbers(3, 3, 8 // groups, 16).astype(np.float64)
    y = ours("Conv2D", [x, f], **a)
    g = numbers(*y.shape).astype(np.float64)
    dx, df = ours("Conv2DBackpropInput", [shape(*X), f, g], **a), ours("Conv2DBackpropFilter", [x, shape(*f.shape), g], **a)
    assert abs((y * g).sum() - (x * dx).sum()) < 1e-9 and abs((y * g).sum() - (f * df).sum()) < 1e-9
    x, f, g = (v.astype(np.float32) for v in (x, f, g))
    assert np.allclose(ours("Conv2D", [x, f], **a), y, 1e-5, 1e-5)
    assert np.allclose(ours("Conv2DBackpropInput", [shape(*X), f, g], **a), dx, 1e-5, 1e-5)
    assert np.allclose(ours("Conv2DBackpropFilter", [x, shape(*f.shape), g], **a), df, 1e-5, 1e-4)


def test_mirrored_convolution_of_a_batch(ours):
    """TensorFlow takes rows of the first image for all of them."""
    x, f, b = numbers(*X), numbers(3, 3, 8, 4), np.array([[0, 0], [1, 2], [0, 1], [0, 0]], np.int32)
    a = dict(mode="REFLECT", **ONE)
    for op, more in (("FusedPadConv2D", []), ("FusedResizeAndPadConv2D", [shape(9, 5)])):
        each = [ours(op, [x[i:i + 1], *more, b, f], **a)[0] for i in range(len(x))]
        assert np.allclose(ours(op, [x, *more, b, f], **a), each, 1e-5, 1e-5)
