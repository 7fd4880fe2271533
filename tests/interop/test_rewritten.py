"""Ops that no program has but that masters put into graphs (fused, merged, for transfers), and functions that are called by name of a device."""
import numpy as np
import pytest
import tensorflow as tf

import both

tf1 = tf.compat.v1


def node(name, inputs, **attrs):
    """An op that Python has no function for."""
    def value(v):
        if isinstance(v, bool):
            return tf1.AttrValue(b=v)
        if isinstance(v, int):
            return tf1.AttrValue(i=v)
        if isinstance(v, bytes):
            return tf1.AttrValue(s=v)
        if isinstance(v, tf.DType):
            return tf1.AttrValue(type=v.as_datatype_enum)
        kind = "s" if isinstance(v[0], bytes) else "type" if isinstance(v[0], tf.DType) else "shape"
        items = [x.as_datatype_enum if kind == "type" else x.as_proto() if kind == "shape" else x for x in v]
        return tf1.AttrValue(list=tf1.AttrValue.ListValue(**{kind: items}))

    op = tf1.get_default_graph()._create_op_internal(name, inputs, name=name.strip("_"), dtypes=None, attrs={k: value(v) for k, v in attrs.items()})
    return op.outputs


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A TensorFlow master (the worker) over a task of ours (the ps)."""
    import conftest
    c = conftest.Cluster(tmp_path_factory.mktemp("mixed"), 1, 1, 0, "trn", "tf", ())
    with pytest.MonkeyPatch.context() as env:
        env.setenv("TF_ENABLE_ONEDNN_OPTS", "1")  # as it is by default on newer processors: more is fused
        c.start()
    try:
        yield c
    finally:
        c.stop()


def test_host_send(mixed):
    """TensorFlow's master sends strings as tensors of the host."""
    x = tf1.placeholder_with_default(["a", "longer than a small string can be, surely", ""], [None])
    with tf1.device("/job:ps/task:0"):
        a = tf.strings.join([x, "-ps"])
    with tf1.device("/job:worker/task:0"):
        b = tf.strings.join([a, "-worker"])
    with tf1.device("/job:ps/task:0"):
        c = tf.strings.join([b, "-ps again"])
    got = both.run(mixed.target("worker"), [a, b, c])
    with tf1.Graph().as_default():  # the same without devices
        g = x.graph.as_graph_def()
        for n in g.node:
            n.device = ""
        want = tf1.import_graph_def(g, return_elements=[t.name for t in (a, b, c)])
        want = both.run("", want)
    both.close(got, want, 0, 0)


def test_fused_batch_norm(mixed):
    """TensorFlow's master makes one op of a batch norm and the activation behind it; here it runs on our task."""
    rng = np.random.RandomState(3)

    def build():
        outs = []
        for fmt, shape in (("NHWC", (2, 3, 5, 8)), ("NHWC", (1, 4, 4, 3)), ("NCHW", (2, 8, 3, 5))):
            n = shape[3] if fmt == "NHWC" else shape[1]
            for side in (False, True):
                x, s = tf1.placeholder_with_default(f(*shape), shape), tf1.placeholder_with_default(f(*shape), shape)
                y, _, _ = tf1.nn.fused_batch_norm(x, f(n), f(n), f(n), np.abs(f(n)) + 0.5, is_training=False, data_format=fmt)
                outs.append(tf.nn.relu(y + s if side else y) * 2.0)
            if fmt == "NHWC":
                y, m, v = tf1.nn.fused_batch_norm(x, f(n), f(n), is_training=True)
                outs += [tf.nn.relu(y) + 1.0, m, v]
        return outs

    def f(*shape):
        return rng.randn(*shape).astype(np.float32)

    got = []
    for target, device in (("", None), (mixed.target("worker"), "/job:ps/task:0")):
        rng.seed(3)
        with tf1.Graph().as_default(), tf1.device(device):
            got += both.run(target, build())
    both.close(got[1], got[0], 1e-5, 1e-5)


def test_variables_of_many(target):
    """Handles made by one op, values read by another."""
    kinds = [tf.float32, tf.int64, tf.string]
    values = [np.array([1.0, 2.0], np.float32), np.array(7), np.array([b"a", b"b"], object)]
    h = node("_VarHandlesOp", [], N=3, containers=[b"", b"", b""], shared_names=[b"many_a", b"many_b", b"many_c"], dtypes=kinds,
             shapes=[tf.TensorShape(v.shape) for v in values])
    put = [tf.raw_ops.AssignVariableOp(resource=r, value=tf.constant(v, t)) for r, v, t in zip(h, values, kinds)]
    read = node("_ReadVariablesOp", list(h), N=3, dtypes=kinds)
    both.same(target, read)  # nothing there yet
    both.same(target, read, before=[put])
    one = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name="many_b")
    both.same(target, [tf.raw_ops.ReadVariableOp(resource=one, dtype=tf.int64), node("_ReadVariablesOp", [h[2], one], N=2, dtypes=[tf.string, tf.int64])], before=[put])
    other = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="many_b")
    both.same(target, node("_ReadVariablesOp", [other], N=1, dtypes=[tf.float32]), before=[put])  # of another type


def test_session_handle_v2(target):
    h = tf.raw_ops.GetSessionHandleV2(value=tf.constant([1.0, 2.0]))
    got, want = both.run(target, [h.op, tf.shape(h)])[0], both.run("", [h.op, tf.shape(h)])[0]
    both.close(got, want, 0, 0)


@pytest.mark.parametrize("named", [False, True])
def test_remote_call(shared, target, named):
    """A function on a device of the own task, whole name or only the device; what it refuses."""
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.int32)])
    def f(a, b):
        return a * tf.cast(b, tf.float32), b + 1

    g = f.get_concrete_function()
    g.add_to_graph()
    where = tf1.placeholder(tf.string, None)
    out = list(tf.raw_ops.RemoteCall(target=where, args=[[1.0, 2.0], 3], Tout=[tf.float32, tf.int32], f=g))
    here = {"": "/job:localhost/replica:0/task:0", target: "/job:worker/replica:0/task:0"}
    want, got = (both.run(t, out, {where: (here[t] if named else "") + "/device:CPU:0"})[0] for t in ("", target))
    both.close(got, want, 0, 0)


def test_max_pool_second_gradient(target):
    """Second gradients by the positions of the largest. (TensorFlow has them on GPUs only: its own second gradients that look for the largest again are the same.)"""
    rng = np.random.RandomState(4)
    for shape, k, s, pad in (((2, 6, 6, 3), 2, 2, "VALID"), ((1, 7, 5, 2), 3, 2, "SAME"), ((3, 4, 4, 1), 4, 1, "VALID"), ((1, 3, 3, 2), 2, 1, "SAME")):
        x = rng.permutation(int(np.prod(shape))).reshape(shape).astype(np.float32)
        g = rng.randn(*shape).astype(np.float32)
        kw = dict(ksize=[1, k, k, 1], strides=[1, s, s, 1], padding=pad)
        tf1.reset_default_graph()
        y = tf.raw_ops.MaxPool(input=x, **kw)
        want = both.run("", tf.raw_ops.MaxPoolGradGrad(orig_input=x, orig_output=y, grad=g, **kw))[0]
        for t in (tf.int32, tf.int64):
            for batch in (False, True):
                at = tf.raw_ops.MaxPoolWithArgmax(input=x, Targmax=t, include_batch_in_index=batch, **kw).argmax
                got = both.run(target, tf.raw_ops.MaxPoolGradGradWithArgmax(input=x, grad=g, argmax=at, include_batch_in_index=batch, **kw))[0]
                both.close(got, want, 0, 0)
