"""Graphs made with the C functions of trainera/ops.h, in the real TensorFlow: the same nodes as its own raw ops make, and the same results here and there."""
import os
import pathlib
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from clusters import BIN
from tensorflow.python.framework import op_def_registry

import both

tf1 = tf.compat.v1
C = pathlib.Path(os.environ.get("TRAINERA_BUILD") or pathlib.Path(BIN).parent) / "tests" / "interop" / "c"
raw = tf.raw_ops


@pytest.fixture(scope="module")
def from_c(tmp_path_factory):
    path = tmp_path_factory.mktemp("ops") / "graph.pb"
    subprocess.run([C / "ops_graph", path], check=True, timeout=60)
    graph = tf1.GraphDef()
    graph.ParseFromString(path.read_bytes())
    return graph


def by_tensorflow():
    """What ops_graph.c builds, by TensorFlow."""
    def const(name, value, dtype=tf.int32):
        return tf.constant(value, dtype, name=name)

    x = raw.Placeholder(dtype=tf.float32, shape=[4, 6], name="x")
    zero, one, two, half = const("zero", 0), const("one", 1), const("two", 2), const("half", 0.5, tf.float32)
    add = raw.AddV2(x=x, y=half, name="add")
    mul = raw.Mul(x=add, y=x, name="mul")
    mm = raw.MatMul(a=mul, b=x, transpose_b=True, name="mm")
    raw.BatchMatMulV2(x=mm, y=mm, adj_x=True, name="bmm")
    relu = raw.Relu(features=mm, name="relu")
    raw.LeakyRelu(features=mm, alpha=0.5, name="leaky")
    raw.LeakyRelu(features=mm, alpha=0.0, name="leaky0")
    raw.Tanh(x=x, name="tanh")
    sm = raw.Softmax(logits=x, name="softmax")
    raw.Log(x=sm, name="log")
    xe = raw.SoftmaxCrossEntropyWithLogits(features=x, labels=sm, name="xent")
    raw.Mean(input=xe.loss, axis=zero, name="loss")
    raw.Sum(input=xe.backprop, axis=one, keep_dims=True, name="sum")
    raw.ArgMax(input=x, dimension=one, output_type=tf.int32, name="best")
    raw.ArgMin(input=x, dimension=one, name="worst")
    raw.TopKV2(input=x, k=two, name="top")
    parts = raw.Split(axis=one, value=x, num_split=3, name="split")
    raw.ConcatV2(values=parts, axis=zero, name="concat")
    raw.Pack(values=parts, axis=1, name="pack")
    raw.Unpack(value=relu, num=4, axis=1, name="unpack")
    raw.AddN(inputs=parts, name="addn")
    raw.Transpose(x=x, perm=const("perm", [1, 0]), name="transpose")
    flat = raw.Reshape(tensor=x, shape=const("all", [-1]), name="flat")
    raw.ExpandDims(input=flat, axis=zero, name="expand")
    raw.Squeeze(input=raw.ExpandDims(input=flat, axis=zero, name="expand2"), axis=[0], name="squeeze")
    raw.StridedSlice(input=x, begin=const("begin", [1]), end=const("end", [3]), strides=const("step", [1]), end_mask=1, name="slice")
    raw.GatherV2(params=x, indices=const("rows", [3, 0, 3]), axis=zero, name="gather")
    raw.OneHot(indices=const("hot", [1, 4]), depth=const("depth", 5), on_value=const("on", 1, tf.float32), off_value=const("off", 0, tf.float32), axis=0, name="onehot")
    raw.Cast(x=x, DstT=tf.int64, Truncate=True, name="cast")
    raw.Bitcast(input=x, type=tf.int32, name="bits")
    raw.Shape(input=x, out_type=tf.int64, name="shape")
    raw.ShapeN(input=[x, mm], name="shapes")
    raw.IdentityN(input=[x, zero], name="idn")
    raw.Cumsum(x=x, axis=one, exclusive=True, reverse=True, name="cumsum")
    raw.Bucketize(input=x, boundaries=[-0.5, 0.25, 1], name="bucket")
    raw.DynamicStitch(indices=[zero, one], data=[half, half], name="stitch")
    raw.DynamicPartition(data=x, partitions=const("to", [0, 1, 1, 0]), num_partitions=2, name="deal")
    raw.Unique(x=const("some", [7, 8, 7, 9]), name="unique")
    raw.Where(condition=raw.Greater(x=x, y=half, name="greater"), name="where")
    raw.SelectV2(condition=raw.Less(x=x, y=half, name="less"), t=x, e=half, name="select")
    raw.Einsum(inputs=[x, x], equation="ij,kj->ik", name="einsum")
    raw.ClipByValue(t=x, clip_value_min=raw.Neg(x=half, name="neg"), clip_value_max=half, name="clip")
    raw.CheckNumerics(tensor=x, message="x is bad", name="check")
    raw.EnsureShape(input=x, shape=[None, 6], name="ensure")

    img = raw.Placeholder(dtype=tf.float32, shape=[1, 5, 5, 2], name="img")
    fil = raw.Placeholder(dtype=tf.float32, shape=[3, 3, 2, 2], name="fil")
    conv = raw.Conv2D(input=img, filter=fil, strides=[1, 1, 1, 1], padding="SAME", dilations=[1, 2, 2, 1], name="conv")
    raw.Conv2D(input=img, filter=fil, strides=[1, 2, 2, 1], padding="EXPLICIT", explicit_paddings=[0, 0, 1, 1, 2, 0, 0, 0], name="conv_e")
    raw.DepthwiseConv2dNative(input=img, filter=fil, strides=[1, 1, 1, 1], padding="VALID", name="depth_conv")
    raw.MaxPool(input=conv, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID", name="pool")
    raw.AvgPool(value=conv, ksize=[1, 2, 2, 1], strides=[1, 1, 1, 1], padding="SAME", name="avg")
    scale, offset, none = const("scale", [1, 2], tf.float32), const("offset", [0, 0.5], tf.float32), const("none", [], tf.float32)
    bn = raw.FusedBatchNormV3(x=conv, scale=scale, offset=offset, mean=none, variance=none, epsilon=0.001, name="bn")
    raw.BiasAdd(value=bn.y, bias=offset, name="bias")
    raw.LRN(input=conv, depth_radius=1, bias=2, name="lrn")
    raw.SpaceToDepth(input=raw.ResizeNearestNeighbor(images=img, size=const("size", [4, 4]), name="resize"), block_size=2, name="s2d")

    words = const("words", ["a,b", "c"], tf.string)
    raw.StringJoin(inputs=[words, words], separator="-", name="join")
    raw.StringToHashBucketStrong(input=words, num_buckets=100, key=[5, 6], name="hash")
    raw.AsString(input=const("digit", [3, 14]), width=4, fill="0", name="digits")
    raw.StringFormat(inputs=[words], template="<%s>", placeholder="%s", summarize=1, name="format")
    raw.DecodeRaw(bytes=const("bytes", "abcd", tf.string), out_type=tf.uint8, little_endian=False, name="raw")
    raw.StaticRegexReplace(input=words, pattern="[a-b]", rewrite="x", replace_global=False, name="regex")

    var = raw.VarHandleOp(dtype=tf.float32, shape=[2], shared_name="var", name="var")
    init = raw.AssignVariableOp(resource=var, value=const("var/value", [1, 2], tf.float32), name="var/init")
    raw.ReadVariableOp(resource=var, dtype=tf.float32, name="var/read")
    raw.ResourceApplyGradientDescent(var=var, alpha=const("rate", 0.5, tf.float32), delta=const("grad", [2, 4], tf.float32), use_locking=True, name="train")
    ref = raw.VariableV2(shape=[], dtype=tf.int64, name="ref")
    raw.Assign(ref=ref, value=const("ref/value", 7, tf.int64), use_locking=False, name="ref/init")
    raw.CountUpTo(ref=ref, limit=10, name="count")
    q = raw.FIFOQueueV2(component_types=[tf.float32, tf.string], shapes=[[2], []], capacity=8, name="queue")
    raw.QueueEnqueueV2(handle=q, components=[const("put/a", [3, 4], tf.float32), const("put/b", "s", tf.string)], name="put")
    got = raw.QueueDequeueV2(handle=q, component_types=[tf.float32, tf.string], name="take")
    raw.Print(input=got[0], data=[got[1]], message="taken", first_n=1, name="print")
    with tf.control_dependencies([init]):
        raw.NoOp(name="done")


def node(n):
    """A NodeDef without attrs that have their default value, and constants by value."""
    defaults = {a.name: a.default_value for a in op_def_registry.get(n.op).attr if a.HasField("default_value")}
    attrs = {}
    for k, v in n.attr.items():
        if k.startswith("_") or (k in defaults and defaults[k] == v):
            continue
        attrs[k] = tf.make_ndarray(v.tensor).tolist() if v.HasField("tensor") else v.SerializeToString(deterministic=True)
    return n.op, list(n.input), n.device, attrs


def test_same_nodes(from_c):
    """Node by node what TensorFlow's raw ops put in a graph: op, inputs, attrs."""
    by_tensorflow()
    want = {n.name: node(n) for n in tf1.get_default_graph().as_graph_def().node}
    got = {n.name: node(n) for n in from_c.node}
    assert got.keys() == want.keys()
    for name in want:
        assert got[name] == want[name], name
    assert len({n.op for n in from_c.node}) > 70


def test_imported_unchanged(from_c):
    """TensorFlow takes the graph as it is, and gives it back with defaults filled in and nothing else changed."""
    with tf1.Graph().as_default() as g:
        tf.import_graph_def(from_c, name="")
        back = g.as_graph_def()
    want = {n.name: node(n) for n in from_c.node}
    assert {n.name: node(n) for n in back.node} == want
    for n in from_c.node:  # nothing that was said was lost
        there = next(m for m in back.node if m.name == n.name)
        assert set(n.attr) <= set(there.attr)


def test_same_results(from_c, fresh):
    """Every output that is a value, and the effects on state, in TensorFlow's session and in one of ours."""
    tf.import_graph_def(from_c, name="")
    g = tf1.get_default_graph()
    state = {"var", "var/init", "var/read", "train", "ref", "ref/init", "count", "queue", "put", "take", "print", "done"}
    values = [t for op in g.get_operations() for t in op.outputs
              if op.name not in state and op.type not in ("Placeholder", "Const") and not (op.type == "FusedBatchNormV3" and t.value_index > 2)]
    rng = np.random.default_rng(5)
    feed = {n + ":0": rng.normal(size=g.get_tensor_by_name(n + ":0").shape).astype(np.float32) for n in ("x", "img", "fil")}

    def results(target):
        with tf1.Session(target, config=tf1.ConfigProto(operation_timeout_in_ms=60000)) as s:
            out = [s.run(values, feed)]
            s.run(["var/init", "ref/init", "done"])
            s.run("train")
            s.run("put")
            return out + [s.run(["var/read:0", "count:0"]), s.run(["ref:0"]), s.run(["take:0", "take:1"])]

    both.agree(results(fresh.target("worker")), results(""), rtol=1e-5, atol=1e-5)


# What the plain arguments of every_op.c are not good enough for: TensorFlow looks at them while it imports, and says this.
PICKY = {
    "ApproxTopK": "Invalid reduction dimension",
    "AudioSpectrogram": "window size must be > 1",
    "BatchToSpaceND": "block_shape must have rank 1",
    "Einsum": "einsum equation",
    "FusedPadConv2D": "must be rank",
    "FusedResizeAndPadConv2D": "must be rank",
    "ParallelConcat": "must be fully defined",
    "ParseExample": "unknown rank",
    "ParseExampleV2": "unknown rank",
    "ParseSequenceExample": "must match the size",
    "ParseSequenceExampleV2": "must match the size",
    "ParseSingleExample": "unknown rank",
    "ParseSingleSequenceExample": "!= len(",
    "RaggedTensorToTensor": "Unknown string",
    "ResourceCountUpTo": "no shape/type information",
    "SpaceToBatchND": "block_shape must have rank 1",
    **dict.fromkeys(["SparseTensorToCSRSparseMatrix", "DenseToCSRSparseMatrix"], "Expected a known rank"),
    **dict.fromkeys(["CSRSparseMatrixComponents", "CSRSparseMatrixToDense", "CSRSparseMatrixToSparseTensor", "SparseMatrixMatMul", "SparseMatrixNNZ", "SparseMatrixSparseMatMul",
                     "SparseMatrixTranspose"], "Unable to access shape and type info"),
}


def test_every_function(tmp_path):
    """Each function of trainera/ops.h makes a node that TensorFlow takes, as it was made."""
    path = tmp_path / "every"
    subprocess.run([C / "every_op", path], check=True, timeout=120)
    data, at, wrong, n = path.read_bytes(), 0, [], 0
    while at < len(data):
        end = data.index(b"\n", at)
        op, size = data[at:end].decode().split()
        at = end + 1 + int(size)
        graph = tf1.GraphDef()
        graph.ParseFromString(data[end + 1:at])
        n += 1
        if op_def_registry.get(op).HasField("deprecation"):  # only graphs of that time may have it
            graph.versions.producer = op_def_registry.get(op).deprecation.version - 1
        try:
            with tf1.Graph().as_default() as g:
                tf.import_graph_def(graph, name="")
                back = {m.name: node(m) for m in g.as_graph_def().node}
            if back != {m.name: node(m) for m in graph.node}:
                wrong.append(f"{op}: {back['it']} is not what was imported")
        except ValueError as e:
            if op not in PICKY or PICKY[op] not in str(e):
                wrong.append(f"{op}: {str(e)[:200]}")
    assert not wrong, f"{len(wrong)} of {n}:\n" + "\n".join(wrong)
    assert n > 940
