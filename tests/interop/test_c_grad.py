"""Gradients that our builder adds (tests/interop/c/gradgraph.c), against tf.gradients: TensorFlow builds a model and its own gradients, ours are added to
the same graph, and TensorFlow runs both in one step."""
import os
import pathlib
import re
import subprocess

import numpy as np
import pytest
import tensorflow as tf2
from clusters import BIN
from tensorflow.python.ops import map_ops as _  # registers its gradients

tf = tf2.compat.v1
TOOL = str(pathlib.Path(BIN).parent / "tests" / "interop" / "c" / "gradgraph")
ENV = {k: v for k, v in os.environ.items() if k != "TRAINERA_OPS_SEEN"}
MODELS = []
COMPARED = {}  # model → the ops of its graph


def model(fn):
    MODELS.append(fn)
    return fn


def add_gradients(tmp_path, graph_def, ys, xs, *flags):
    """The graph with gradients, and for each x None, a name or (values, indices, shape)."""
    (tmp_path / "in.pb").write_bytes(graph_def.SerializeToString())
    names = [",".join(t if isinstance(t, str) else t.name for t in l) for l in (ys, xs)]
    p = subprocess.run([TOOL, *flags, tmp_path / "in.pb", *names, tmp_path / "out.pb"], capture_output=True, text=True, env=ENV, timeout=60)
    if p.returncode:
        raise RuntimeError(p.stderr)
    out = tf.GraphDef.FromString((tmp_path / "out.pb").read_bytes())
    found = []
    for line in p.stdout.splitlines():
        kind, *rest = line.split()
        found.append(None if kind == "none" else rest[0] if kind == "dense" else tuple(rest))
    return out, found


def x_name(x):
    return x.handle.name if hasattr(x, "handle") else x._ref().name if hasattr(x, "_ref") else x.name


def dense(values, indices, shape):
    out = np.zeros(shape, values.dtype)
    np.add.at(out, indices, values)
    return out


def run(graph, init, names, feed):
    with tf.Graph().as_default() as g:
        tf.import_graph_def(graph, name="")
        with tf.Session(graph=g) as s:
            s.run(init)
            return s.run(names, feed)


def compare(tmp_path, ys, xs, feeds=None, tol=1e-5, stop=None, sparse=None, grad_ys=None, zeros=False):
    flags = ["--stop=" + ",".join(t.name for t in stop)] if stop else []
    flags += ["--grad-ys=" + ",".join(t.name for t in grad_ys)] if grad_ys else []
    flags += ["--zeros"] if zeros else []
    init = tf.global_variables_initializer()
    # Ours first: TensorFlow's gradients rewrite the loops and decisions that they go through.
    graph, got = add_gradients(tmp_path, tf.get_default_graph().as_graph_def(), ys, [x_name(x) for x in xs], *flags)
    want = tf.gradients(ys, xs, grad_ys=grad_ys, stop_gradients=stop, unconnected_gradients=tf.UnconnectedGradients.ZERO if zeros else tf.UnconnectedGradients.NONE)
    assert [g is None for g in got] == [w is None for w in want]
    if sparse is not None:
        assert [isinstance(g, tuple) for g in got] == sparse
    theirs = [(w.values.name, w.indices.name, w.dense_shape.name) if isinstance(w, tf.IndexedSlices) else w.name for w in want if w is not None]
    feed = {k.name: v for k, v in (feeds or {}).items()}
    a_all = run(tf.get_default_graph().as_graph_def(), init.name, theirs, feed)
    b_all = run(graph, init.name, [n for n in got if n is not None], feed)
    for a, b in zip(a_all, b_all):
        a, b = (dense(*t) if isinstance(t, (tuple, list)) else t for t in (a, b))
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(b, a, rtol=tol * 10, atol=tol * max(1, np.abs(a).max(initial=0)))


def data(*shape, seed=1, lo=-1.0, hi=1.0):
    return np.random.RandomState(seed).uniform(lo, hi, shape).astype(np.float32)


def var(name, *shape, ref=False):
    return tf.get_variable(name, initializer=tf.constant(data(*shape, seed=sum(map(ord, name)))), use_resource=not ref)


@model
def mlp():
    x = tf.placeholder(tf.float32, [None, 6])
    w, b, w2 = var("w", 6, 5), var("b", 5), var("w2", 5, 3)
    h = tf.nn.relu(tf.matmul(x, w) + b)
    h = tf.nn.dropout(h, rate=0.3, seed=3)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.constant([0, 2, 1, 1]), logits=tf.matmul(h, w2)))
    return [loss + 0.01 * tf.nn.l2_loss(w)], [w, b, w2, x], {x: data(4, 6)}


@model
def mlp_ref():
    x = tf.constant(data(4, 6))
    w, b = var("w", 6, 5, ref=True), var("b", 5, ref=True)
    y = tf.nn.softmax_cross_entropy_with_logits(labels=tf.nn.softmax(tf.constant(data(4, 5))), logits=tf.nn.bias_add(tf.matmul(x, w), b))
    return [tf.reduce_sum(y)], [w, b], None


@model
def convnet():
    x = tf.placeholder(tf.float32, [2, 8, 8, 3])
    k, k2, g, o = var("k", 3, 3, 3, 4), var("k2", 2, 2, 4, 4), var("gamma", 4), var("beta", 4)
    h = tf.nn.conv2d(x, k, strides=[1, 1, 1, 1], padding="SAME")
    h, m, v = tf.nn.fused_batch_norm(h, g, o)[:3]
    h = tf.nn.max_pool2d(tf.nn.elu(h), 2, 2, "VALID")
    h = tf.nn.leaky_relu(tf.nn.conv2d(h, k2, strides=[1, 1, 1, 1], padding="VALID", dilations=1))
    h = tf.nn.avg_pool2d(h, 2, 1, "SAME")
    return [tf.reduce_mean(tf.square(h))], [k, k2, g, o, x], {x: data(2, 8, 8, 3)}


@model
def separable():
    x = tf.constant(data(1, 6, 6, 2))
    d, p = var("d", 3, 3, 2, 2), var("p", 1, 1, 4, 3)
    return [tf.reduce_sum(tf.tanh(tf.nn.separable_conv2d(x, d, p, [1, 1, 1, 1], "SAME")))], [d, p, x], None


@model
def inference_batch_norm():
    x = tf.constant(data(2, 4, 4, 3))
    g, o = var("g", 3), var("o", 3)
    y = tf.nn.fused_batch_norm(x, g, o, mean=tf.constant([0.1, 0.2, 0.3]), variance=tf.constant([1.0, 0.5, 2.0]), is_training=False)[0]
    return [tf.reduce_sum(tf.sigmoid(y))], [g, o, x], None


@model
def embedding():
    e, big = var("e", 10, 4), var("big", 12, 4, ref=True)
    ids = tf.constant([[1, 3, 3], [0, 9, 1]])
    a = tf.nn.embedding_lookup(e, ids)
    b = tf.nn.embedding_lookup(big, tf.reshape(ids, [-1]))
    c = tf.nn.embedding_lookup(e, tf.constant([2, 2]))
    return [tf.reduce_sum(tf.square(a)) + tf.reduce_sum(tf.exp(b)) + tf.reduce_sum(c)], [e, big], None


@model
def embedding_dense_too():
    e = var("e", 10, 4)
    return [tf.reduce_sum(tf.square(tf.nn.embedding_lookup(e, [1, 1, 5]))) + tf.reduce_sum(tf.matmul(e, e, transpose_b=True))], [e], None


@model
def embedding_parts():
    e0, e1 = var("e0", 5, 3), var("e1", 5, 3)
    ids = tf.constant([0, 7, 3, 9, 9], tf.int64)
    y = tf.nn.embedding_lookup([e0, e1], ids, partition_strategy="mod")
    return [tf.reduce_sum(y * tf.constant(data(5, 3)))], [e0, e1], None


@model
def sparse_embedding():
    e = var("e", 8, 3)
    sp = tf.SparseTensor(tf.constant([[0, 0], [0, 1], [2, 0]], tf.int64), tf.constant([1, 4, 1], tf.int64), [3, 2])
    return [tf.reduce_sum(tf.square(tf.nn.embedding_lookup_sparse(e, sp, None, combiner="sum")))], [e], None


@model
def second_order():
    w = var("w", 3, 4)
    x = tf.constant(data(2, 3))
    y = tf.reduce_sum(tf.tanh(tf.matmul(x, w)) * tf.sigmoid(tf.matmul(x, w)))
    g = tf.gradients(y, w)[0]
    return [tf.reduce_sum(tf.square(g))], [w], None


@model
def second_order_losses():
    z = var("z", 4, 3)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[0, 1, 2, 1], logits=z)
    loss += tf.nn.softmax_cross_entropy_with_logits(labels=tf.nn.softmax(tf.constant(data(4, 3))), logits=z)
    loss += tf.reduce_sum(tf.nn.softmax(z) * tf.nn.log_softmax(2 * z), 1)
    g = tf.gradients(tf.reduce_mean(loss), z)[0]
    return [tf.reduce_sum(g * tf.constant(data(4, 3)))], [z], None


@model
def second_order_conv():
    k = var("k", 2, 2, 1, 2)
    x = tf.constant(data(1, 4, 4, 1))
    y = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, k, [1, 1, 1, 1], "SAME")), 2, 2, "SAME")
    g = tf.gradients(tf.reduce_sum(y * y * y), k)[0]
    return [tf.reduce_sum(tf.square(g))], [k], None


def penalty(training):
    x, g, o = var("x", 2, 3, 3, 2), var("g", 2), var("o", 2)
    kw = {} if training else {"mean": tf.constant([0.1, -0.2]), "variance": tf.constant([0.7, 1.3]), "is_training": False}
    y = tf.nn.fused_batch_norm(x, g, o, **kw)[0]
    d = tf.gradients(tf.reduce_sum(y * tf.square(y)), [x, g])
    return [tf.reduce_sum(tf.square(d[0])) + tf.reduce_sum(d[1] * [1.0, 2.0])], [x, g], None


@model
def second_order_batch_norm():
    return penalty(True)


@model
def second_order_batch_norm_inference():
    return penalty(False)


@model
def old_cond_of_references():
    a = var("a", 3, ref=True)
    y = tf.cond(tf.reduce_sum(a) < 100.0, lambda: tf.square(a) * 2.0, lambda: a)
    return [tf.reduce_sum(y)], [a], None


@model
def arrays():
    a, b = var("a", 3, 4), var("b", 2, 4)
    c = tf.concat([a, b], 0)
    s = tf.split(c, [1, 4], 0)[1]
    t = tf.transpose(tf.tile(s[:, 1:3], [2, 1]))[..., ::2]
    u = tf.unstack(tf.stack([t, t * 2], 1), axis=1)[1]
    p = tf.pad(u, [[1, 0], [0, 2]])
    q = tf.slice(p, [0, 1], [2, -1]) + tf.reverse(p, [0])[:2, 1:]
    r = tf.where(q > 0, q, 0.5 * q) * tf.expand_dims(tf.gather(c, [0, 1], axis=1)[:2, 1], 1)
    return [tf.reduce_sum(tf.square(r)) + tf.reduce_sum(tf.cumsum(c, 1, exclusive=True) * c) + tf.reduce_max(c) + tf.reduce_sum(tf.reduce_prod(c, 0))], [a, b], None


@model
def unknown_shapes():
    x, y = tf.placeholder(tf.float32, None), tf.placeholder(tf.float32, [None, None])
    z = tf.maximum(x, y) * x / (2.0 + y * y) - tf.pow(tf.abs(y) + 0.1, x)
    z = tf.concat([z, y + tf.zeros_like(z)], -1)
    return [tf.reduce_mean(z, 0), tf.reduce_max(z, axis=-1, keepdims=True)], [x, y], {x: data(3), y: data(4, 1, seed=2)}


@model
def partitions():
    x = var("x", 6, 2)
    parts = tf.dynamic_partition(x, [0, 2, 1, 0, 2, 2], 3)
    y = tf.dynamic_stitch([[0, 3], [1], [2, 4, 5]], [parts[0] * 2, parts[1], tf.square(parts[2])])
    return [tf.reduce_sum(tf.unsorted_segment_sum(y * y, [0, 1, 1, -1, 0, 2], 4) * 3) + tf.reduce_sum(tf.segment_sum(tf.exp(x), [0, 0, 1, 1, 2, 2]))], [x], None


@model
def einsums():
    a, b = var("a", 2, 3, 4), var("b", 4, 5)
    y = tf2.einsum("bij,jk->bki", a, b)
    z = tf2.einsum("bij,bkj->bik", a, a)
    return [tf.reduce_sum(tf.square(y)) + tf.reduce_sum(tf.tanh(z)) + tf.reduce_sum(tf.matmul(a, b[None, :, :3]))], [a, b], None


@model
def linear_algebra():
    a, b = var("a", 3, 3), var("b", 3, 2)
    m = tf.matmul(a, a, transpose_b=True) + 2.0 * tf.eye(3)
    e, v = tf.linalg.eigh(m)
    y = tf.linalg.solve(m, b) + tf.linalg.triangular_solve(tf.linalg.cholesky(m), b) + tf.matmul(tf.linalg.inv(m), b)
    return [tf.reduce_sum(tf.square(y)) + tf.linalg.det(m) + tf.linalg.slogdet(m)[1] + tf.reduce_sum(e * [1.0, 2.0, 3.0]) + tf.reduce_sum(tf.square(v) * tf.constant(data(3, 3)))
            + tf.reduce_sum(tf.linalg.band_part(m, 0, 1)) + tf.reduce_sum(tf.square(tf.linalg.diag_part(m)))], [a, b], None


@model
def images():
    x, k = var("x", 1, 4, 4, 2), var("k", 1, 2, 2, 2, 2)
    y = tf.image.resize_bilinear(x, [6, 5]) + tf.image.resize_nearest_neighbor(x, [6, 5])
    z = tf.nn.space_to_depth(tf.nn.lrn(x), 2)
    w = tf.nn.conv3d(tf.expand_dims(x, 1), k, [1, 1, 1, 1, 1], "SAME")
    return [tf.reduce_sum(y * y) + tf.reduce_sum(tf.sin(z)) + tf.reduce_sum(tf.nn.max_pool3d(w, 2, 1, "SAME")) + tf.reduce_sum(tf.nn.avg_pool3d(w * w, 2, 1, "SAME"))
            + tf.reduce_sum(tf.nn.top_k(tf.reshape(x, [4, 8]), 3).values * [1.0, 2.0, 3.0]) + tf.reduce_sum(tf.roll(x, 1, 1) * x)], [x, k], None


@model
def segments():
    x = tf.get_variable("x", initializer=tf.constant([[1.0, 2], [3, 0], [3, 5], [0, 7], [2, 2]]), use_resource=True)
    ids, u = tf.constant([0, 0, 0, 1, 1]), tf.constant([2, 0, 2, -1, 0])
    y = [tf.segment_mean(x, ids), tf.segment_max(x, ids), tf.segment_min(x, ids), tf.unsorted_segment_max(x, u, 3)[::2], tf.unsorted_segment_prod(x, u, 3)[:2],
         tf.sparse_segment_mean(x, [0, 2, 2], [0, 0, 1]), tf.sparse_segment_sqrt_n(x, [0, 2, 2], [0, 0, 1])]
    return [tf.add_n([tf.reduce_sum(t * tf.constant(data(2, 2, seed=i))) for i, t in enumerate(y)])], [x], None


@model
def sparse_tensors():
    v, d = var("v", 3), var("d", 3, 2)
    sp = tf.SparseTensor(tf.constant([[0, 1], [1, 0], [1, 2]], tf.int64), v, [2, 3])
    y = tf.sparse_tensor_dense_matmul(sp, d)
    z = tf.sparse_add(sp, tf.constant(data(2, 3))) * tf.sparse_tensor_to_dense(sp)
    return [tf.reduce_sum(tf.square(y)) + tf.reduce_sum(z) + tf.reduce_sum(tf.square(tf.sparse_reduce_sum(sp, 1)))], [v, d], None


@model
def special_functions():
    x = tf.get_variable("x", initializer=tf.constant([0.3, 0.9, 1.7]), use_resource=True)
    y = tf.math.erfc(x) + tf.math.digamma(x) + tf.math.igamma(x, x + 1.0) + tf.math.xlogy(x, x + 2.0) + tf.math.bessel_i1e(x) + tf.math.polygamma(2.0 + 0.0 * tf.stop_gradient(x), x)
    return [tf.reduce_sum(y * y) + tf.norm(x) + tf.reduce_sum(tf.clip_by_value(x, 0.5, 1.0) * x) + tf.reduce_sum(tf.math.cumulative_logsumexp(x))], [x], None


@model
def unconnected():
    a, b = var("a", 3), var("b", 3)
    return [tf.reduce_sum(a * tf.stop_gradient(b)) + tf.cast(tf.argmax(b), tf.float32)], [a, b], None


@model
def gather_nds():
    a, v = var("a", 3, 4), var("v", 6, 2)
    return [tf.reduce_sum(tf.square(tf.gather_nd(a, [[0, 1], [2, 2], [0, 1]]))) + tf.reduce_sum(tf.gather(a, [[1, 0], [2, 2], [3, 1]], axis=1, batch_dims=1))
            + tf.reduce_sum(tf.exp(tf.gather_nd(v, [[1], [1]])))], [a, v], None


@model
def complex_numbers():
    a = var("a", 3)
    z = tf.complex(a, a * a)
    return [tf.reduce_sum(tf.real(z * tf.conj(z) * tf.exp(z)))], [a], None


@model
def fourier():
    a, b = var("a", 2, 3, 6), var("b", 2, 3, 6)
    z = tf.complex(a, b)
    y = [tf.signal.fft(z), tf.signal.ifft(z) * 3.0, tf.signal.fft2d(z), tf.signal.ifft2d(z), tf.signal.fft3d(z), tf.signal.ifft3d(z)]
    r = [tf.signal.rfft(a), tf.signal.rfft2d(a), tf.signal.rfft(a[..., :5])]
    s = [tf.signal.irfft(z, [10]), tf.signal.irfft2d(z, [3, 10]), tf.signal.irfft(z[..., :4], [7])]
    return [tf.add_n([tf.reduce_sum(tf.sin(tf.real(t)) * tf.imag(t)) for t in y + r] + [tf.reduce_sum(tf.square(t) * tf.sin(t)) for t in s])
            + tf.reduce_sum(tf.square(tf.angle(z)))], [a, b], None


@model
def complex_decompositions():
    """What does not depend on the phases of the vectors."""
    a, b = var("a", 3, 3), var("b", 3, 3)
    z = tf.complex(a, b) + 2.0 * tf.eye(3, dtype=tf.complex64)
    parts = []
    for m in (z, z[:2], z[:, :2]):
        q, r = tf.linalg.qr(m)
        s, u, v = tf.linalg.svd(m)
        parts += [q, r, tf.matmul(u, v, adjoint_b=True)]
        parts.append(tf.complex(s, 0.0 * s))
    parts.append(tf.raw_ops.TridiagonalMatMul(superdiag=z[:1], maindiag=z[1:2], subdiag=z[2:], rhs=z))
    return [tf.add_n([tf.reduce_sum(tf.sin(tf.real(t)) + tf.square(tf.imag(t))) for t in parts])], [a, b], None


@model
def eigenvalues_of_a_matrix():
    """What depends neither on their order nor on the phases of the vectors."""
    a, b = var("a", 3, 3), var("b", 3, 3)
    parts = []
    for m in (a, tf.complex(a, b)):
        e, v = tf.compat.v2.linalg.eig(m)
        parts += [tf.reduce_sum(tf.sin(tf.real(x)) + tf.square(tf.imag(x))) for x in (e, tf.compat.v2.linalg.eigvals(m))] + [tf.reduce_sum(tf.abs(v) ** 4)]
    return [tf.add_n(parts)], [a, b], None


@model
def square_root_of_a_matrix():
    a = var("a", 2, 3, 3)
    return [tf.reduce_sum(tf.sin(tf.linalg.sqrtm(tf.matmul(a, a, transpose_b=True) + 2.0 * tf.eye(3))))], [a], None


@model
def maps_and_optionals():
    a, b = var("a", 3), var("b", 2, 3)
    m = tf.raw_ops.TensorMapInsert(input_handle=tf.raw_ops.EmptyTensorMap(), key=1, value=a * a)
    m = tf.raw_ops.TensorMapInsert(input_handle=m, key=2, value=tf.sin(a))
    m = tf.raw_ops.TensorMapInsert(input_handle=m, key=3, value=tf.exp(a))
    x = tf.raw_ops.TensorMapLookup(input_handle=m, key=1, value_dtype=tf.float32)
    y = tf.raw_ops.TensorMapLookup(input_handle=tf.raw_ops.TensorMapErase(input_handle=m, key=3, value_dtype=tf.float32), key=2, value_dtype=tf.float32)
    o = tf.raw_ops.OptionalFromValue(components=[b * b, a])
    u, v = tf.raw_ops.OptionalGetValue(optional=o, output_types=[tf.float32, tf.float32], output_shapes=[[2, 3], [3]])
    return [tf.reduce_sum(x * y) + tf.reduce_sum(u * v)], [a, b], None


@model
def ragged_variants():
    a, d = var("a", 5), var("d")
    rt = tf2.RaggedTensor.from_row_splits(a * a, [0, 2, 2, 5])
    out = []
    for rows in (False, True):
        e = tf.raw_ops.RaggedTensorToVariant(rt_nested_splits=[rt.row_splits], rt_dense_values=rt.values, batched_input=rows)
        out.append(tf.raw_ops.RaggedTensorFromVariant(encoded_ragged=e, input_ragged_rank=0 if rows else 1, output_ragged_rank=1, Tvalues=tf.float32).output_dense_values)
    t, g = rt.to_tensor(d), tf.gather(rt, [2, 0, 2])
    c = tf.raw_ops.CompositeTensorVariantFromComponents(components=[tf.exp(a), rt.row_splits], metadata=b"")
    out.append(tf.raw_ops.CompositeTensorVariantToComponents(encoded=c, metadata=b"", Tcomponents=[tf.float32, tf.int64])[0])
    return [tf.reduce_sum(out[0] * tf.sin(out[1]) * out[2]) + tf.reduce_sum(tf.exp(t)) + tf.reduce_sum(tf.square(g.values)) + tf.reduce_sum(tf.cos(rt.to_sparse().values))], [a, d], None


@model
def lists():
    a, r = var("a", 4, 2), tf.raw_ops
    kw = {"element_dtype": tf.float32}
    l = r.TensorListSplit(tensor=a * a, element_shape=[-1, 2], lengths=tf.constant([1, 3], tf.int64))
    x = r.TensorListConcat(input_handle=l, element_shape=[None, 2], **kw).tensor
    y = r.TensorListConcatV2(input_handle=l, element_shape=[-1, 2], leading_dims=tf.constant([1, 3], tf.int64), **kw).tensor
    s = r.TensorListScatter(tensor=tf.sin(a), indices=[3, 1, 0, 2], element_shape=[2])
    s = r.TensorListScatterIntoExistingList(input_handle=s, tensor=a[:2] * 2.0, indices=[2, 0])
    t = r.TensorListScatterV2(tensor=tf.exp(a), indices=[0, 1, 2, 3], element_shape=[2], num_elements=4)
    t = r.TensorListResize(input_handle=t, size=3)
    u, v = (r.TensorListGather(input_handle=h, indices=[2, 0, 1], element_shape=[2], **kw) for h in (s, t))
    return [tf.reduce_sum(tf.square(x) + tf.sin(y)) + tf.reduce_sum(u * v)], [a], None


@model
def array_parts():
    a = var("a", 4, 2)
    parts = tf.TensorArray(tf.float32, 2, infer_shape=False).split(a * a, [1, 3])
    w = tf.TensorArray(tf.float32, 2, infer_shape=False).write(0, a[:2]).write(1, tf.sin(a))
    return [tf.reduce_sum(tf.square(parts.read(1))) + tf.reduce_sum(tf.exp(w.concat()))], [a], None


@model
def fused_lstm():
    x, h, w, c = var("x", 3, 2, 2), var("h", 2, 3), var("w", 5, 12), var("c", 3)
    b = var("b", 12)
    kw = dict(seq_len_max=tf.constant(3, tf.int64), x=x, cs_prev=h, h_prev=h * 2.0, w=w, wci=c, wcf=c, wco=c, b=b)
    y, z = tf.raw_ops.BlockLSTM(use_peephole=True, **kw), tf.raw_ops.BlockLSTM(**kw)
    return [tf.reduce_sum(tf.square(y.h)) + tf.reduce_sum(y.cs * z.h)], [x, h, w, b, c], None


@model
def gradients_of_batch_norm():
    x, g, o = var("x", 2, 3, 3, 2), var("g", 2), var("o", 2)
    m, v = tf.constant([0.1, -0.2]), tf.constant([0.7, 1.3])
    kw = dict(y_backprop=x * x, x=x, scale=g, reserve_space_1=m, reserve_space_2=v)
    y = [tf.raw_ops.FusedBatchNormGrad(**kw), tf.raw_ops.FusedBatchNormGradV2(**kw)]
    return [tf.add_n([tf.reduce_sum(tf.square(t.x_backprop)) + tf.reduce_sum(t.scale_backprop * o) for t in y])], [x, g, o], None


@model
def references():
    a = var("a", 3, ref=True)
    s = tf.raw_ops.RefSwitch(data=a._ref(), pred=tf.reduce_sum(a) < 100.0)
    m = tf.raw_ops.RefMerge(inputs=[s.output_false, s.output_true])
    y = tf.Print(tf.square(tf.raw_ops.RefIdentity(input=m.output)), [1], first_n=0)
    return [tf.reduce_sum(y * tf.abs(tf.complex(a, 2.0 * a)))], [a], None


@model
def watched_by_a_debugger():
    from tensorflow.python.debug.lib import debug_gradients
    a, b, d = var("a", 3), var("b", 3, ref=True), debug_gradients.GradientsDebugger()
    y = d.identify_gradient(tf.tanh(a)) * d.identify_gradient(b._ref())
    assert {o.type for o in tf.get_default_graph().get_operations()} >= {"DebugGradientIdentity", "DebugGradientRefIdentity"}
    return [tf.reduce_sum(tf.square(y))], [a, b], None


@model
def compressed_rows():
    """TensorFlow's gradients forget elements of a factor that the product's gradient has none for: here each has one."""
    from tensorflow.python.ops.linalg.sparse import sparse_csr_matrix_grad, sparse_csr_matrix_ops as csr  # noqa: F401
    at = np.argwhere(np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1]]))
    losses = []
    for lead in (), (2,):
        x, y, z, v = (var("csr%d%s" % (len(lead), n), *lead, *s) for n, s in (("x", (3, 3)), ("y", (3, 3)), ("z", (3, 3)), ("v", ())))
        where = np.array([(i, *w) for i in range(2) for w in at] if lead else at, np.int64)
        shape = np.array(lead + (3, 3), np.int64)
        for i in range(9):
            new = lambda d: csr.dense_to_csr_sparse_matrix(d, where)  # noqa: E731  for each use: TensorFlow cannot add the gradients of a matrix
            turn = dict(transpose_a=i % 3 == 1, adjoint_a=i % 3 == 2, transpose_b=i // 3 == 1, adjoint_b=i // 3 == 2)
            losses.append(tf.reduce_sum(tf.square(csr.sparse_matrix_mat_mul(new(x), z, **turn))))
            t = x.dtype.base_dtype
            for kind in csr.csr_sparse_matrix_to_dense, lambda m, type: csr.csr_sparse_matrix_to_sparse_tensor(m, type=type).values:
                s = csr.sparse_tensor_to_csr_sparse_matrix(where, tf.gather_nd(v[..., None, None] * tf.ones(shape, v.dtype), where), shape)
                p = csr.sparse_matrix_transpose(csr.sparse_matrix_sparse_mat_mul(new(x), new(y) if i % 2 else s, type=t, **turn), type=t)
                losses.append(tf.reduce_sum(tf.square(kind(p, type=t))))
    return [tf.add_n(losses)], tf.trainable_variables(), None


@model
def gamma_samples():
    a = tf.get_variable("a", initializer=tf.constant([[0.4, 1.5, 7.0]]), use_resource=True)
    x = tf.random.gamma([2, 4], a, seed=5)
    for y in (tf.raw_ops.StatelessRandomGammaV2(shape=[2, 4, 1, 3], seed=[5, 6], alpha=a),
              tf.raw_ops.StatelessRandomGammaV3(shape=[2, 4, 1, 3], key=np.array([5], np.uint64), counter=np.array([6, 7], np.uint64), alg=1, alpha=a)):
        x += y
    return [tf.reduce_sum(tf.square(x) * tf.constant(data(2, 4, 1, 3)))], [a], None


@model
def truncated_samples():
    m, s = var("m", 2, 1), tf.exp(var("s", 3))
    lo, hi = tf.constant([-1.0, 0.5, -np.inf]) + 0.1 * tf.square(var("lo", 3)), tf.constant([[2.0], [3.0]]) + tf.square(var("hi", 2, 1))
    x = tf.random.stateless_parameterized_truncated_normal([4, 2, 3], [5, 6], m, s, lo, hi)
    return [tf.reduce_sum(tf.square(x) * tf.constant(data(4, 2, 3)))], tf.trainable_variables(), None


def v2(fn):
    """Built with control flow as functional ops (If, While)."""
    fn.v2 = True
    return model(fn)


def choose(flag):
    a, b = var("a", 3), var("b", 3)
    x = tf.constant(data(3))
    p = tf.reduce_sum(x) > (-100.0 if flag else 100.0)
    y, z = tf.cond(p, lambda: (tf.tanh(a * x) * tf.exp(a), a + 1.0), lambda: (tf.square(b) * a, tf.sin(x)))
    return [tf.reduce_sum(y * z)], [a, b], None


@v2
def cond_true():
    return choose(True)


@v2
def cond_false():
    return choose(False)


@model
def old_cond_true():
    return choose(True)


@model
def old_cond_false():
    return choose(False)


@v2
def cond_with_lookup():
    e = var("e", 6, 2)
    y = tf.cond(tf.reduce_sum(e) < 100.0, lambda: tf.nn.embedding_lookup(e, [1, 1, 3]), lambda: tf.zeros([3, 2]))
    return [tf.reduce_sum(tf.square(y))], [e], None


def power(x, w):
    return tf.while_loop(lambda i, h: i < 4, lambda i, h: (i + 1, tf.tanh(tf.matmul(h, w) + 0.1 * h)), [0, x])[1]


@v2
def while_loop():
    w, x = var("w", 3, 3), var("x", 2, 3)
    return [tf.reduce_sum(tf.square(power(x, w)))], [w, x], None


@v2
def while_of_unknown_shape():
    w = var("w", 3, 3)
    x = tf.placeholder(tf.float32, [None, 3])
    return [tf.reduce_sum(tf.square(power(x, w)))], [w, x], {x: data(4, 3)}


@v2
def growing():
    x = var("x", 1, 2)
    y = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.concat([h, tf.sin(h[:1]) * tf.cast(i + 1, tf.float32)], 0)), [0, x],
                      shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 2])])[1]
    return [tf.reduce_sum(y * y * y)], [x], None


@v2
def nested_loops():
    x, w = var("x", 3), var("w", 3)

    def outer(i, h):
        inner = tf.while_loop(lambda j, g: j < i, lambda j, g: (j + 1, tf.sin(g * w)), [0, h])[1]
        return i + 1, tf.cond(i > 1, lambda: inner * h, lambda: inner + tf.exp(w))

    return [tf.reduce_sum(tf.while_loop(lambda i, h: i < 4, outer, [0, x])[1])], [x, w], None


@v2
def second_order_loop():
    w, x = var("w", 3, 3), var("x", 2, 3)
    g = tf.gradients(tf.reduce_sum(power(x, w)), w)[0]
    return [tf.reduce_sum(tf.square(g))], [w, x], None


def lstm():
    x = tf.placeholder(tf.float32, [2, 5, 3])
    cell = tf.nn.rnn_cell.LSTMCell(4, initializer=tf.constant_initializer(0.1), state_is_tuple=True)
    out, state = tf.nn.dynamic_rnn(cell, x, dtype=tf.float32, sequence_length=[5, 3])
    return [tf.reduce_sum(tf.square(out)) + tf.reduce_sum(state.c)], tf.trainable_variables() + [x], {x: data(2, 5, 3)}


@v2
def dynamic_rnn():
    return lstm()


@model
def old_dynamic_rnn():
    return lstm()


@model
def old_while_loop():
    return while_loop()


@model
def old_nested_loops():
    x, w = var("x", 3), var("w", 3)

    def outer(i, h):
        return i + 1, h + tf.while_loop(lambda j, g: j < i, lambda j, g: (j + 1, tf.sin(g * w)), [0, h])[1]

    return [tf.reduce_sum(tf.while_loop(lambda i, h: i < 4, outer, [0, x])[1])], [x, w], None


@model
def old_mapped():
    return mapped()


@model
def old_growing():
    return growing()


@v2
def mapped():
    w, x = var("w", 3), tf.constant(data(4, 3))
    y = tf.map_fn(lambda r: tf.exp(r * w), x)
    z = tf.scan(lambda a, r: tf.tanh(a + r * w), x, initializer=tf.zeros(3))
    return [tf.reduce_sum(tf.square(y)) + tf.reduce_sum(z)], [w], None


@v2
def with_function():
    w, x = var("w", 3, 3), tf.constant(data(2, 3))
    f = tf2.function(lambda a: (tf.nn.relu(tf.matmul(a, w)), tf.exp(a)))
    y, z = f(x * 2.0)
    return [tf.reduce_sum(tf.square(f(y)[0])) + tf.reduce_sum(z * y)], [w], None


@v2
def random_in_a_loop():
    w = var("w", 3)
    y = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h * w + tf.random_uniform([3], seed=5) * h), [0, w])[1]
    return [tf.reduce_sum(y)], [w], None


# ---- control flow, built the old way and as functional ops


def both(fn):
    """A model with control flow, both ways."""
    def old():
        return fn()
    old.__name__ = "old_" + fn.__name__
    model(old)
    return v2(fn)


@both
def cond_in_loop():
    x, w, u = var("x", 3), var("w", 3), var("u", 3)

    def body(i, h):
        return i + 1, tf.cond(tf.equal(i % 2, 0), lambda: tf.sin(h * w), lambda: h * tf.exp(0.1 * u) + h)

    return [tf.reduce_sum(tf.square(tf.while_loop(lambda i, h: i < 5, body, [0, x])[1]))], [x, w, u], None


@both
def cond_on_what_the_loop_carries():
    x, w = var("x", 3), var("w", 3)

    def body(i, h, s):
        h = tf.cond(tf.reduce_sum(h) > 0.2, lambda: tf.tanh(h * w) - 0.3, lambda: h + tf.square(w))
        return i + 1, h, s + tf.reduce_sum(h * h)

    return [tf.while_loop(lambda i, h, s: i < 6, body, [0, x, 0.0])[2]], [x, w], None


@both
def loop_in_cond():
    x, w = var("x", 3), var("w", 3)
    return [tf.reduce_sum(tf.cond(tf.reduce_sum(x) < 100.0,
                                  lambda: tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.sin(h * w)), [0, x])[1],
                                  lambda: x * x * w))], [x, w], None


@both
def loop_in_the_other_side():
    x, w = var("x", 3), var("w", 3)
    return [tf.reduce_sum(tf.cond(tf.reduce_sum(x) > 100.0,
                                  lambda: tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.sin(h * w)), [0, x])[1],
                                  lambda: x * x * w))], [x, w], None


@both
def cond_in_cond():
    x, w = var("x", 3), var("w", 3)
    s = tf.reduce_sum(x)
    inner = lambda: tf.cond(s < 50.0, lambda: tf.square(x) * w, lambda: tf.exp(x))
    return [tf.reduce_sum(tf.cond(s < 100.0, inner, lambda: x))], [x, w], None


@both
def loop_in_cond_in_loop():
    x, w = var("x", 3), var("w", 3)

    def body(i, h):
        return i + 1, tf.cond(tf.equal(i % 2, 1), lambda: tf.while_loop(lambda j, g: j < i, lambda j, g: (j + 1, tf.sin(g * w)), [0, h])[1] * h, lambda: h + tf.exp(w))

    return [tf.reduce_sum(tf.while_loop(lambda i, h: i < 4, body, [0, x])[1])], [x, w], None


@both
def three_loops_deep():
    x, w = var("x", 2), var("w", 2)
    loop = lambda n, f, h: tf.while_loop(lambda i, g: i < n, lambda i, g: (i + 1, f(g)), [0, h])[1]
    return [tf.reduce_sum(loop(2, lambda a: loop(2, lambda b: loop(3, lambda c: tf.sin(c + w), b) * b, a) + w, x))], [x, w], None


@both
def loop_that_never_turns():
    x, w = var("x", 3), var("w", 3)
    return [tf.reduce_sum(tf.square(tf.while_loop(lambda i, h: i < 0, lambda i, h: (i + 1, h * w), [0, x])[1]))], [x, w], None


@both
def one_loop_after_another():
    x, w = var("x", 3), var("w", 3)
    h = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.tanh(h * w)), [0, x])[1]
    n, g = tf.while_loop(lambda i, g: i < 2, lambda i, g: (i + 1, g * h + w), [0, tf.exp(h)])
    return [tf.reduce_sum(g * h) * tf.cast(n, tf.float32)], [x, w], None


@both
def lookup_in_a_loop():
    e, w = var("e", 6, 2), var("w", 2)

    def body(i, h):
        return i + 1, tf.tanh(h * w) + tf.reduce_sum(tf.nn.embedding_lookup(e, [i, i + 1]), 0)

    return [tf.reduce_sum(tf.while_loop(lambda i, h: i < 3, body, [0, tf.zeros(2)])[1])], [e, w], None


@both
def several_carried():
    """Of some only the first result counts, one is only counted, one is swapped with another."""
    x, w = var("x", 3), var("w", 3)
    r = tf.while_loop(lambda i, a, b, c: i < 4, lambda i, a, b, c: (i + 1, b * w, tf.sin(a), c + a * b), [0, x, x * x, tf.zeros(3)])
    return [tf.reduce_sum(r[3]), tf.reduce_sum(tf.square(r[1]))], [x, w], None


@both
def matrices_in_a_loop():
    x, w = var("x", 2, 3), var("w", 3, 3)

    def body(i, h):
        h = tf.nn.relu(tf.matmul(h, w) + 0.1)
        return i + 1, tf.nn.softmax(tf.concat([h[:, 1:], h[:, :1]], 1)) * tf.reduce_max(h + 0.5, 1, keepdims=True)

    return [tf.reduce_sum(tf.square(tf.while_loop(lambda i, h: i < 3, body, [0, x])[1]))], [x, w], None


@both
def stepwise_array():
    x, w = var("x", 4, 3), var("w", 3)
    read = tf.TensorArray(tf.float32, 4, clear_after_read=False).unstack(x)

    def body(i, h, out):
        h = tf.cond(i < 2, lambda: tf.tanh(h + read.read(i) * w), lambda: h * read.read(i))
        return i + 1, h, out.write(i, h * h)

    r = tf.while_loop(lambda i, h, out: i < 4, body, [0, tf.zeros(3), tf.TensorArray(tf.float32, 4)])
    return [tf.reduce_sum(r[2].stack() * tf.constant(data(4, 3)))], [x, w], None


@both
def second_order_cond():
    x, w = var("x", 3), var("w", 3)
    y = tf.cond(tf.reduce_sum(x) < 100.0, lambda: tf.reduce_sum(tf.square(x) * tf.sin(w) * x), lambda: tf.reduce_sum(x))
    g = tf.gradients(y, x)[0]
    return [tf.reduce_sum(tf.square(g))], [x, w], None


@v2
def second_order_nested():
    x, w = var("x", 3), var("w", 3)

    def body(i, h):
        return i + 1, tf.cond(tf.equal(i % 2, 0), lambda: tf.sin(h * w), lambda: h * h)

    g = tf.gradients(tf.reduce_sum(tf.while_loop(lambda i, h: i < 4, body, [0, x])[1]), x)[0]
    return [tf.reduce_sum(tf.square(g))], [x, w], None


@v2
def by_case():
    x, w = var("x", 3), var("w", 3)
    pick = lambda i: tf.switch_case(tf.constant(i), [lambda: tf.sin(x), lambda: x * w, lambda: tf.exp(w)])
    return [tf.reduce_sum(pick(0) * pick(1) + pick(2) * pick(7))], [x, w], None


@v2
def by_case_without_state():
    x, w = tf.constant(data(3)), tf.constant(data(3, seed=2))
    pick = lambda i: tf.switch_case(tf.constant(i), [lambda: tf.sin(x), lambda: x * w, lambda: tf.exp(w)])
    return [tf.reduce_sum(pick(0) * pick(1) + pick(2) * pick(7))], [x, w], None


@v2
def functions_in_functions():
    x, w = var("x", 3), var("w", 3)
    inner = tf2.function(lambda a: tf.sin(a) * w)
    outer = tf2.function(lambda a: tf.cond(tf.reduce_sum(a) < 100.0, lambda: inner(a) + inner(a * a), lambda: a))
    r = tf.while_loop(lambda i, h: i < 2, lambda i, h: (i + 1, outer(h)), [0, x])[1]
    g = tf.gradients(tf.reduce_sum(inner(r)), x)[0]
    return [tf.reduce_sum(g * r)], [x, w], None


@v2
def function_with_variables():
    w, e = var("w", 3), var("e", 4, 3)

    @tf2.function
    def f(i):
        return tf.nn.embedding_lookup(e, i) * w + tf.gather(w, [0, 0, 1])

    return [tf.reduce_sum(tf.square(f([1, 3]) * f([0, 0])))], [w, e], None


@model
def quantized():
    """Steps have no differences to compare with: gradients pass as if there were none."""
    x, lo, hi = var("x", 4, 5), tf.Variable(-0.3), tf.Variable(0.4)
    los, his = tf.Variable([-0.5, -0.1, 0.0, -2.0, -0.2]), tf.Variable([0.1, 0.3, 0.0, 2.0, 0.7])
    raw, ys = tf.raw_ops, []
    ys.append(raw.FakeQuantWithMinMaxArgs(inputs=x, min=-0.4, max=0.5, num_bits=4))
    ys.append(raw.FakeQuantWithMinMaxVars(inputs=tf.sin(x), min=lo, max=hi, num_bits=5, narrow_range=True))
    ys.append(raw.FakeQuantWithMinMaxVarsPerChannel(inputs=x * x - 0.3, min=los, max=his))
    ys.append(raw.QuantizeAndDequantizeV2(input=x, input_min=lo, input_max=hi, range_given=True))
    ys.append(raw.QuantizeAndDequantizeV3(input=tf.cos(x), input_min=lo, input_max=hi, num_bits=6))
    ys.append(raw.QuantizeAndDequantizeV4(input=x, input_min=lo, input_max=hi, range_given=True, num_bits=4))
    ys.append(raw.QuantizeAndDequantizeV4(input=tf.exp(x) - 1.0, input_min=los, input_max=his, range_given=True, axis=1))
    return [tf.reduce_sum(y * tf.constant(data(4, 5, seed=i))) for i, y in enumerate(ys)], [x, lo, hi, los, his], None


@pytest.mark.parametrize("build", MODELS, ids=lambda m: m.__name__)
def test_against_tensorflow(build, tmp_path):
    if not hasattr(build, "v2"):
        tf.disable_control_flow_v2()
    try:
        if hasattr(build, "v2"):
            tf.enable_control_flow_v2()
        compare(tmp_path, *build())
        graph = tf.get_default_graph().as_graph_def()
        COMPARED[build.__name__] = {n.op for nodes in [graph.node, *(f.node_def for f in graph.library.function)] for n in nodes}
    finally:
        tf.disable_control_flow_v2()


# Rows that no graph of TensorFlow's can compare.
ALONE = {
    **dict.fromkeys(["Enter", "Exit"], "only say that loops of old graphs become While ops first"),
    "BlockLSTMV2": "TensorFlow's is that of BlockLSTM, whose gates are in another order: differences say the same as ours",
    "PreventGradient": "is an error on both sides",
    "QuantizeAndDequantize": "TensorFlow builds no such node any more",
    **dict.fromkeys([f"TensorArray{what}{v}" for what in ("Concat", "Gather", "Read", "Scatter", "Split", "Write") for v in ("", "V2")],
                    "TensorFlow's are registered, and make nodes of the third version that do not fit"),
    **dict.fromkeys(["RFFT3D", "IRFFT3D"], "TensorFlow has none"),
}


def test_every_row_is_compared():
    """Runs behind the models: the rows that they and the lines of tests/unit/grad_cases.inc (test_c_grad_rows.py) do not have between them."""
    if len(COMPARED) < len(MODELS):
        pytest.skip("not all models ran")
    top = pathlib.Path(__file__).parents[2]
    rows = set()
    for f in (top / "src" / "grad").glob("rows_*.c"):
        rows |= set(re.findall(r'^\s*\{"(\w+)",\s', f.read_text(), re.M))
    assert len(rows) > 300
    lines = set(re.findall(r'^\s*\{"(\w+)", "', (top / "tests" / "unit" / "grad_cases.inc").read_text(), re.M))
    assert rows - lines - set().union(*COMPARED.values()) - set(ALONE) == set()
    assert set(ALONE) <= rows


ON_OURS = [convnet, embedding, cond_true, nested_loops, dynamic_rnn, old_dynamic_rnn, old_cond_true, mapped, with_function, fourier, maps_and_optionals, ragged_variants]
ON_OURS += [m for m in MODELS if m.__name__ in ("old_cond_in_loop", "old_loop_in_cond_in_loop", "old_stepwise_array", "old_three_loops_deep")]


@pytest.mark.parametrize("build", ON_OURS, ids=lambda m: m.__name__)
def test_on_our_servers(build, fresh, tmp_path):
    """The same gradients, worked out by a cluster of ours."""
    if hasattr(build, "v2"):
        tf.enable_control_flow_v2()
    try:
        ys, xs, feeds = build()
    finally:
        tf.disable_control_flow_v2()
    init = tf.global_variables_initializer()
    graph, got = add_gradients(tmp_path, tf.get_default_graph().as_graph_def(), ys, [x_name(x) for x in xs])
    feed = {k.name: v for k, v in (feeds or {}).items()}
    values = []
    for target in ["", fresh.target("worker")]:
        with tf.Graph().as_default() as g:
            tf.import_graph_def(graph, name="")
            with tf.Session(target, graph=g) as s:
                s.run(init.name)
                values.append(s.run([n for n in got if n is not None], feed))
    for a, b in zip(*values):
        a, b = (dense(*t) if isinstance(t, (tuple, list)) else t for t in (a, b))
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5 * max(1, np.abs(a).max(initial=0)))


def test_slices_where_tensorflow_has_them(tmp_path):
    ys, xs, _ = embedding()
    compare(tmp_path, ys, xs, sparse=[True, True])


def test_slices_and_dense(tmp_path):
    ys, xs, _ = embedding_dense_too()
    compare(tmp_path, ys, xs, sparse=[False])


def test_stop_gradients(tmp_path):
    x = var("x", 3)
    a = tf.square(x)
    b = tf.exp(a)
    compare(tmp_path, [tf.reduce_sum(a * b)], [x, a, b], stop=[a])


def test_gradients_of_the_results_are_given(tmp_path):
    x, w = var("x", 3), var("w", 3)
    a, b, z = x * w, tf.complex(tf.sin(x), w), tf.cond(tf.reduce_sum(x) < 100.0, lambda: tf.exp(x), lambda: w)
    compare(tmp_path, [a, b, z], [x, w, a], grad_ys=[tf.constant(data(3)), tf.complex(tf.constant(data(3, seed=2)), x), 2.0 * w])


def test_zeros_where_nothing_is_connected(tmp_path):
    x, w, r, t = var("x", 3), var("w", 2, 3), var("r", 4, ref=True), tf.constant(data(2, 2))
    compare(tmp_path, [tf.reduce_sum(tf.square(x))], [x, w, r, t], zeros=True)


def test_of_several_results_with_stops_inside_of_bodies(tmp_path):
    x, w = var("x", 3), var("w", 3)
    tf.enable_control_flow_v2()
    try:
        u = tf.sin(x) * w
        v = tf.cond(tf.reduce_sum(x) < 100.0, lambda: tf.stop_gradient(x) * x + u, lambda: x)
        y = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.stop_gradient(h * w) + h * u), [0, x])[1]
    finally:
        tf.disable_control_flow_v2()
    compare(tmp_path, [y, v, u], [x, w, u], stop=[u], zeros=True)


def test_second_order_of_an_old_loop(tmp_path):
    """TensorFlow has none of old loops: its own of the same loop as a function says what it must be."""
    def build():
        x, w = var("x", 3), var("w", 3)
        body = lambda i, h: (i + 1, tf.cond(tf.equal(i % 2, 0), lambda: tf.sin(h * w), lambda: h * h))
        return [tf.reduce_sum(tf.while_loop(lambda i, h: i < 4, body, [0, x])[1])], [x, w]
    tf.enable_control_flow_v2()
    try:
        ys, xs = build()
        want = tf.gradients(tf.reduce_sum(tf.square(tf.gradients(ys, xs[0])[0])), xs)
        init = tf.global_variables_initializer()
        with tf.Session() as s:
            s.run(init)
            want = s.run(want)
    finally:
        tf.disable_control_flow_v2()
    tf.reset_default_graph()
    ys, xs = build()
    init = tf.global_variables_initializer().name
    graph, got = add_gradients(tmp_path, tf.get_default_graph().as_graph_def(), ys, [x_name(xs[0])])
    with tf.Graph().as_default() as g:
        tf.import_graph_def(graph, name="")
        y = tf.reduce_sum(tf.square(g.get_tensor_by_name(got[0])))
        graph = g.as_graph_def()
    graph, got = add_gradients(tmp_path, graph, [y], [x_name(x) for x in xs])
    for a, b in zip(want, run(graph, init, got, {})):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


def test_gradients_of_others_are_not_guessed(tmp_path):
    """tf.custom_gradient is a Python function that the graph only names."""
    x = var("x", 3)

    @tf.custom_gradient
    def halved(v):
        return v * 2.0, lambda d: d * 0.5

    y = tf.reduce_sum(halved(tf.sin(x)))
    with pytest.raises(RuntimeError, match=r"NotFound: the gradient of IdentityN 'IdentityN' is to be 'CustomGradient-\d+'.*trn_gradient_register"):
        add_gradients(tmp_path, tf.get_default_graph().as_graph_def(), [y], [x.handle])


def test_colocation_and_names(tmp_path):
    with tf.device("/job:ps/task:1"):
        w = var("w", 3, 4)
    with tf.device("/job:worker/task:0"), tf.name_scope("layer"):
        y = tf.reduce_sum(tf.matmul(tf.constant(data(2, 3)), w), name="y")
    graph, got = add_gradients(tmp_path, tf.get_default_graph().as_graph_def(), [y], [w.handle], "--colocate")
    nodes = {n.name: n for n in graph.node}
    made = [n for n in graph.node if n.name.startswith("gradients/layer/MatMul_grad/")]
    assert got == ["gradients/layer/MatMul_grad/MatMul:0"] and made
    assert all(n.attr["_class"].list.s == [b"loc:@layer/MatMul"] for n in made)
    assert nodes["gradients/layer/y_grad/BroadcastTo"].attr["_class"].list.s == [b"loc:@layer/y"]


def test_no_gradient_says_what_to_do(tmp_path):
    x = var("x", 3)
    y = tf.raw_ops.SoftsignGrad(gradients=x, features=x)
    with pytest.raises(RuntimeError, match=r"NotFound: No gradient defined for op: SoftsignGrad \(node 'SoftsignGrad'\).*trn_stop_gradient"):
        add_gradients(tmp_path, tf.get_default_graph().as_graph_def(), [y], [x.handle])
