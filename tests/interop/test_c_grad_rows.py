"""Every gradient row against tf.gradients: the cases of tests/unit/grad_cases.inc, which the unit test compares with differences, are built by TensorFlow here,
and TensorFlow's gradients and ours of all of them are worked out in one step each."""
import pathlib
import re

import numpy as np
import tensorflow as tf2
from tensorflow.python.framework import op_def_library, op_def_registry

from test_c_grad import add_gradients

tf = tf2.compat.v1
CASES = pathlib.Path(__file__).parent.parent / "unit" / "grad_cases.inc"
KINDS = {"f": np.float64, "s": np.float32, "k": np.float64, "ks": np.float32, "i": np.int32, "l": np.int64, "b": np.bool_}

# Ours is compared with differences only, because:
NOT_COMPARED = {
    "ApproxTopK": "TensorFlow has it for XLA only",
    "BatchNormWithGlobalNormalization": "TensorFlow builds no such node any more",
    "DebugGradientIdentity": "TensorFlow's asks the debugger that made the node: a model of test_c_grad.py",
    "MatrixDiagPartV2": "TensorFlow puts the numbers where the V3 op had taken them from",
    "Snapshot": "TensorFlow has none; its own rewriting makes the op, behind the gradients",
    "SparseDenseCwiseAdd": "TensorFlow has none",
    "TopK": "TensorFlow builds no such node any more",
}
OURS_ALONE = {"PadV2, x1": "what fills the border: TensorFlow leaves it out"}


def read_cases():
    """(line number, op, inputs, attrs, number of outputs that count or 0) of each line."""
    for n, line in enumerate(CASES.read_text().splitlines(), 1):
        m = re.match(r'\s*\{"(\w+)", "([^"]*)", "([^"]*)"(.*)\},$', line)
        if m:
            outs = re.search(r"\.outs = (\d+)", m[4])
            yield n, m[1], m[2], m[3], int(outs[1]) if outs else 0


def make_inputs(text, rng):
    """The tensors of "f[2,3]@0:1 i[2]{1,0}", and which of them are differentiated, with their values."""
    ins, feeds = [], {}
    for kind, dims, lo, hi, values in re.findall(r"(\w+)\[([\d,]*)\](?:@([-.\d]+):([-.\d]+))?(?:\{([^}]*)\})?", text):
        shape, t = [int(d) for d in dims.split(",") if d], KINDS[kind]
        if kind in "fs":
            x = tf.placeholder(t, shape)
            feeds[x] = rng.uniform(float(lo or 0.2), float(hi or 0.9), shape).astype(t)
            ins.append(x)
        else:
            v = [float(s) for s in values.split(",")] if values else rng.uniform(0.3, 0.7, int(np.prod(shape)))
            ins.append(tf.constant(np.array(v).astype(t).reshape(shape)))
    return ins, feeds


def make_attr(a, text):
    def one(kind, s):
        return {"int": int, "float": float, "bool": lambda v: v == "true", "type": tf.as_dtype, "string": str,
                "shape": lambda v: tf.TensorShape(None if v == "?" else [int(n) for n in v.strip("[]").split(",")])}[kind](s)
    if a.type.startswith("list("):
        return [one(a.type[5:-1], s) for s in text.strip("[]").split(",")]
    return one(a.type, text)


def default(v):
    kind = v.WhichOneof("value")
    if kind == "list":
        return list(v.list.i) or list(v.list.s) or list(v.list.f)
    return v.s.decode() if kind == "s" else tf.as_dtype(v.type) if kind == "type" else tf.TensorShape(v.shape) if kind == "shape" else getattr(v, kind)


def make_node(op, ins, attrs):
    d = op_def_registry.get(op)
    lists = sum(bool(a.number_attr or a.type_list_attr) for a in d.input_arg)
    each = (len(ins) - (len(d.input_arg) - lists)) // max(lists, 1)
    kw, at = {}, 0
    for a in d.input_arg:
        if a.number_attr or a.type_list_attr:
            kw[a.name], at = ins[at:at + each], at + each
        else:
            kw[a.name], at = ins[at], at + 1
    kinds = {a.name: a for a in d.attr}
    for word in attrs.split():
        k, v = word.split("=", 1)
        kw[k] = make_attr(kinds[k], v)
    follow = {n for a in d.input_arg for n in (a.number_attr, a.type_attr, a.type_list_attr)}
    for a in d.attr:
        if a.name not in kw and a.name not in follow and a.HasField("default_value"):
            kw[a.name] = default(a.default_value)
    y = op_def_library.apply_op(op, **kw)
    return (y if isinstance(y, tf.Tensor) else tf2.nest.flatten(y)[0]).op


def step(g, names, feed):
    plain = tf.ConfigProto()
    plain.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Session(graph=g, config=plain) as s:
        return s.run(names, feed)


def run(graph, names, feed):
    with tf.Graph().as_default() as g:
        tf.import_graph_def(graph, name="")
        return step(g, names, feed)


def test_every_case(tmp_path):
    rng = np.random.RandomState(11)
    cases, feed = [], {}
    with tf.Graph().as_default() as g:
        for line, op, ins, attrs, outs in read_cases():
            if op in NOT_COMPARED:
                continue
            with tf.name_scope("line%d" % line):
                x, feeds = make_inputs(ins, rng)
                node = make_node(op, x, attrs)
                of = [o for o in node.outputs[:outs or None] if o.dtype in (tf.float32, tf.float64)]
                ys = [tf.raw_ops.L2Loss(t=tf.raw_ops.Sin(x=o)) for o in of]  # each number counts differently
            cases.append((line, op, ys, list(feeds)))
            feed.update({k.name: v for k, v in feeds.items()})
        ours_graph, ours = add_gradients(tmp_path, g.as_graph_def(), [y for c in cases for y in c[2]], [x for c in cases for x in c[3]])
        theirs = tf.gradients([y for c in cases for y in c[2]], [x for c in cases for x in c[3]])
        theirs = [None if t is None else tf.convert_to_tensor(t).name for t in theirs]
    where = ["line %d: %s, x%d" % (line, op, i) for line, op, _, xs in cases for i in range(len(xs))]
    a_all = step(g, [t for t in theirs if t], feed)
    b_all = run(ours_graph, [t for t in ours if t], feed)
    wrong = []
    for w, x, t, o in zip(where, [x for c in cases for x in c[3]], theirs, ours):
        a = a_all.pop(0) if t else np.zeros_like(feed[x.name])  # no gradient is one of zeros
        b = b_all.pop(0) if o else np.zeros_like(feed[x.name])
        if isinstance(b, (list, tuple)):
            full = np.zeros(b[2], b[0].dtype)
            np.add.at(full, b[1], b[0])
            b = full
        if t is None and w.split(": ")[1] in OURS_ALONE:
            continue
        tol = 1e-4 if a.dtype == np.float32 else 1e-8
        if a.shape != b.shape or a.dtype != b.dtype or not np.allclose(a, b, rtol=tol, atol=tol * max(1, np.abs(a).max(initial=0))):
            wrong.append("%s\n  theirs %s\n  ours   %s" % (w, a.ravel()[:8], b.ravel()[:8]))
    assert not wrong, "\n".join(wrong)


def test_exceptions_have_cases():
    assert set(NOT_COMPARED) | {w.split(",")[0] for w in OURS_ALONE} <= {c[1] for c in read_cases()}
