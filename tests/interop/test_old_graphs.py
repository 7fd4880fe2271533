"""Ops of graphs from before TensorFlow 1.0 that today's Python refuses to make: a graph that says it is old enough may have them, and both sides must run it alike."""
import numpy as np
import pytest
import tensorflow as tf

import both

tf1 = tf.compat.v1


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


def op(name, **kw):
    return getattr(tf.raw_ops, name)(**kw)


def after(deps, make):
    with tf1.control_dependencies([d.op if hasattr(d, "op") else d for d in deps]):
        return make()


def age(producer):
    """The default graph from now on says that TensorFlow of GraphDef version `producer` made it: ops deprecated later are allowed."""
    tf1.reset_default_graph()
    old = tf1.GraphDef()
    old.versions.producer = producer
    tf1.import_graph_def(old)


# ---- TensorArrays with string handles -------------------------------------------------------------------------------


class Array:
    """A TensorArray of the first ("") or second ("V2") kind, with its flow."""

    def __init__(self, v, size=3, dtype=tf.float32, **kw):
        self.v, self.dtype = v, dtype
        self.h = op("TensorArray" + v, size=size, dtype=dtype, **kw)
        self.flow = tf.constant(0.0)

    def do(self, name, flow=None, **kw):
        return op("TensorArray" + name + self.v, handle=self.h, flow_in=self.flow if flow is None else flow, **kw)

    def write(self, i, value):
        self.flow = self.do("Write", index=i, value=tf.constant(value, self.dtype))
        return self


KINDS = pytest.mark.parametrize("v", ["", "V2"])


@pytest.mark.asan
@KINDS
def test_array_write_read(target, v):
    age(15)
    for clear in (True, False):
        a = Array(v, clear_after_read=clear).write(0, [1.0, 2.0]).write(2, [3.0, 4.0]).write(1, [5.0, 6.0])
        r = a.do("Read", index=2, dtype=tf.float32)
        both.same(target, [r, after([r], lambda: a.do("Size"))])
        both.same(target, a.do("Gather", indices=[2, 0], dtype=tf.float32))
        both.same(target, list(a.do("Concat", dtype=tf.float32)))
        both.same(target, [r, after([r], lambda: a.do("Read", index=2, dtype=tf.float32))])  # again: fails if cleared
        both.same(target, a.do("Read", index=2, dtype=tf.int32))
        both.same(target, a.do("Read", index=3, dtype=tf.float32))
        both.same(target, a.do("Read", index=-1, dtype=tf.float32))
        both.same(target, a.do("Write", index=0, value=[9.0, 9.0]))  # a second time
        both.same(target, after([a.flow], lambda: a.do("Write", index=3, value=[9.0, 9.0])))  # beyond its size
        shut = after([a.flow], lambda: op("TensorArrayClose" + v, handle=a.h))
        both.same(target, after([shut], lambda: a.do("Read", index=1, dtype=tf.float32)))
        both.same(target, after([shut], lambda: a.do("Size")))


@KINDS
def test_array_scatter_split(target, v):
    age(15)
    for dt, values in ((tf.float64, [[1, 2], [3, 4], [5, 6]]), (tf.int64, [1, 2, 3]), (tf.string, ["x", "yy", ""]), (tf.bool, [True, False, True])):
        a = Array(v, dtype=dt)
        a.flow = a.do("Scatter", indices=[1, 2, 0], value=tf.constant(values, dt))
        both.same(target, a.do("Gather", indices=[0, 1, 2], dtype=dt))
        b = Array(v, dtype=dt)
        b.flow = b.do("Split", value=tf.constant(values, dt), lengths=tf.constant([2, 0, 1], tf.int64))
        both.same(target, list(b.do("Concat", dtype=dt)))
        both.same(target, [b.do("Read", index=i, dtype=dt) for i in range(3)])
        both.same(target, b.do("Gather", indices=[0, 1], dtype=dt))  # of different shapes
        both.same(target, b.do("Split", value=tf.constant(values, dt), lengths=tf.constant([2, 2, 2], tf.int64)))
        both.same(target, Array(v, dtype=dt).do("Split", value=tf.constant(values, dt), lengths=tf.constant([3], tf.int64)))
    a = Array(v, size=1, dynamic_size=True)
    a.flow = a.do("Scatter", indices=[4, 0], value=[[1.0], [2.0]])
    both.same(target, [a.do("Size"), a.do("Read", index=4, dtype=tf.float32)])
    both.same(target, a.do("Gather", indices=[0, 1], dtype=tf.float32))  # 1 was never written
    b = Array(v)
    both.same(target, b.do("Scatter", indices=[0, 3], value=[[1.0], [2.0]]))
    both.same(target, b.do("Scatter", indices=tf1.placeholder_with_default([[0]], None), value=[[1.0]]))
    both.same(target, b.do("Scatter", indices=[0], value=1.0))


@KINDS
def test_array_element_shape(target, v):
    age(15)
    a = Array(v, element_shape=[None, 2])
    both.same(target, a.write(0, [[1.0, 2.0]]).do("Read", index=0, dtype=tf.float32))
    both.same(target, a.do("Write", index=1, value=[1.0, 2.0]))
    both.same(target, Array(v, size=2, element_shape=[2]).do("Gather", indices=[], dtype=tf.float32, element_shape=[2]))
    both.same(target, list(Array(v, size=0).do("Concat", dtype=tf.float32, element_shape_except0=[3])))
    both.same(target, list(Array(v, size=0).do("Concat", dtype=tf.float32)))


@KINDS
def test_array_gradient(target, v):
    """A gradient array sums what is written to it; the two handles of one source are the same array."""
    age(15)
    a = Array(v, size=2, clear_after_read=False).write(0, [1.0, 2.0]).write(1, [3.0, 4.0])
    g = []
    for _ in range(2):
        b = Array.__new__(Array)
        b.v, b.dtype, b.flow = v, tf.float32, a.flow
        b.h = op("TensorArrayGrad" + v, handle=a.h, flow_in=a.flow, source="gradients")
        g.append(b)
    g[0].write(0, [10.0, 20.0])
    g[1].flow = g[0].flow
    g[1].write(0, [1.0, 1.0])
    both.same(target, g[0].do("Read", flow=g[1].flow, index=0, dtype=tf.float32))
    both.same(target, g[0].do("Gather", flow=g[1].flow, indices=[0, 1], dtype=tf.float32))  # 1 has no gradient yet: zeros
    both.same(target, g[0].do("Size"))
    other = op("TensorArrayGrad" + v, handle=g[0].h, flow_in=a.flow, source="x")  # of a gradient
    both.same(target, op("TensorArraySize" + v, handle=other, flow_in=0.0))


def test_array_pack_unpack(target):
    age(15)
    a = Array("", size=3, clear_after_read=False)
    a.flow = op("TensorArrayUnpack", handle=a.h, value=[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], flow_in=0.0)
    both.same(target, [op("TensorArrayPack", handle=a.h, flow_in=a.flow, dtype=tf.float32), a.do("Read", index=1, dtype=tf.float32)])
    both.same(target, op("TensorArrayPack", handle=a.h, flow_in=a.flow, dtype=tf.float32, element_shape=[3]))
    for bad in ([[1.0]], 1.0):
        both.same(target, op("TensorArrayUnpack", handle=a.h, value=bad, flow_in=0.0))
    both.same(target, op("TensorArrayPack", handle=Array("", size=2).h, flow_in=0.0, dtype=tf.float32))
    both.same(target, op("TensorArrayPack", handle=Array("", size=0).h, flow_in=0.0, dtype=tf.float32, element_shape=[2, 3]))
    both.same(target, op("TensorArrayPack", handle=Array("", size=0).h, flow_in=0.0, dtype=tf.float32))
    d = Array("", size=0, dynamic_size=True)
    grown = op("TensorArrayUnpack", handle=d.h, value=[1.0, 2.0, 3.0, 4.0], flow_in=0.0)
    both.same(target, [op("TensorArrayPack", handle=d.h, flow_in=grown, dtype=tf.float32), d.do("Size", flow=grown)])


@KINDS
def test_array_in_a_loop(target, v):
    """Written in a loop of Enter, Merge, Switch, NextIteration; read after it."""
    age(15)
    a = Array(v, size=4)
    _, flow = tf1.while_loop(lambda i, f: i < 4, lambda i, f: (i + 1, op("TensorArrayWrite" + v, handle=a.h, index=i, value=tf.cast(i, tf.float32) * 2.0, flow_in=f)),
                             [tf.constant(0), a.flow]) if v else (None, a.write(0, 0.0).write(1, 2.0).write(2, 4.0).write(3, 6.0).flow)
    both.same(target, a.do("Gather", flow=flow, indices=[3, 2, 1, 0], dtype=tf.float32))


# ---- references in loops and branches -------------------------------------------------------------------------------


def ref_variable(name, value):
    v = tf1.get_variable(name, initializer=value, use_resource=False)
    return v, v._ref()


@pytest.mark.asan
def test_ref_loop(target):
    """A loop that carries a variable's reference round: each turn adds to the variable itself."""
    v, ref = ref_variable("v", np.array([1.0, 2.0], np.float32))
    i = op("Enter", data=tf.constant(0), frame_name="f", parallel_iterations=1)
    n = op("Enter", data=tf.constant(5), frame_name="f", is_constant=True)
    r = op("RefEnter", data=ref, frame_name="f", parallel_iterations=1)
    fixed = op("RefEnter", data=ref, frame_name="f", is_constant=True)
    mi, mr = op("Merge", inputs=[i, i]), op("RefMerge", inputs=[r, r])
    assert mr.output.dtype._is_ref_dtype
    go = op("LoopCond", input=tf.less(mi.output, n))
    si, sr = op("Switch", data=mi.output, pred=go), op("RefSwitch", data=mr.output, pred=go)
    added = op("AssignAdd", ref=sr.output_true, value=after([si.output_true], lambda: tf.constant([1.0, 10.0])))
    seen = after([added], lambda: op("RefIdentity", input=fixed))
    nr = op("RefNextIteration", data=added)
    ni = after([seen], lambda: op("NextIteration", data=si.output_true + 1))
    mi.output.op._update_input(1, ni)
    mr.output.op._update_input(1, nr)
    turns, out = op("Exit", data=si.output_false), op("RefExit", data=sr.output_false)
    assert out.dtype._is_ref_dtype
    last = op("AssignAdd", ref=out, value=[100.0, 100.0])
    both.same(target, [turns, last], before=[v.initializer], times=3)
    both.same(target, after([last], lambda: v.read_value()), before=[v.initializer])


def test_ref_merge(target):
    """Whichever reference is alive is passed on, and it is still a reference."""
    a, ra = ref_variable("a", np.float32(1))
    b, rb = ref_variable("b", np.float32(2))
    p = tf1.placeholder_with_default(True, [])
    m = op("RefMerge", inputs=[op("RefSwitch", data=ra, pred=p).output_true, op("RefSwitch", data=rb, pred=p).output_false])
    up = op("AssignAdd", ref=m.output, value=10.0)
    fetch = [up, m.value_index, after([up], lambda: [a.read_value(), b.read_value()])]
    for way in (True, False):
        both.same(target, fetch, {p: way}, before=[[a.initializer, b.initializer]], times=2)


def test_ref_select(target):
    a, ra = ref_variable("a", np.float32(1))
    b, rb = ref_variable("b", np.float32(2))
    i = tf1.placeholder_with_default(1, None)
    put = op("Assign", ref=op("RefSelect", index=i, inputs=[ra, rb]), value=7.0)
    both.same(target, put)  # not initialised
    for index in (0, 1, 2, -1, [0]):
        both.same(target, [put, after([put], lambda: [a.read_value(), b.read_value()])], {i: index}, before=[[a.initializer, b.initializer]])

# ---- readers with string handles ------------------------------------------------------------------------------------


READERS = {
    "TextLineReader": (dict(skip_header_lines=1), "lines"),
    "TFRecordReader": (dict(), "recs"),
    "WholeFileReader": (dict(), "lines"),
    "IdentityReader": (dict(), "lines"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("old")
    for i in range(2):
        (tmp / f"lines{i}").write_bytes(b"header\n" + b"".join(b"%d-%d\n" % (i, j) for j in range(4)))
        (tmp / f"fixed{i}").write_bytes(b"HH" + bytes(range(60 + i, 75 + i)) + b"F")
        with tf1.io.TFRecordWriter(str(tmp / f"recs{i}")) as w:
            for j in range(4):
                w.write(b"record %d %d" % (i, j))
    return tmp


def steps(target, runs):
    """Each fetch of `runs` in turn in one session: what came, or the error's code."""
    out = []
    with tf1.Session(target, config=tf1.ConfigProto(operation_timeout_in_ms=60000)) as s:
        for fetch, feed in runs:
            try:
                out.append(s.run(fetch, feed))
            except tf.errors.OpError as e:
                out.append(both.Failed(e.error_code, e.message))
    return out


def same_steps(target, runs):
    return both.agree(steps(target, runs), steps("", runs))


@pytest.mark.asan
@pytest.mark.parametrize("kind", READERS)
def test_reader(target, files, kind):
    """One record, several, the counts, the state out and in again, and what a reader without a readable state says."""
    age(25)
    attrs, stem = READERS[kind]
    q = op("FIFOQueue", component_types=[tf.string], shapes=[[]])
    put = op("QueueEnqueueMany", handle=q, components=[[str(files / f"{stem}{i}") for i in range(2)]])
    shut = op("QueueClose", handle=q)
    r = op(kind, **attrs)
    one = list(op("ReaderRead", reader_handle=r, queue_handle=q))
    three = list(op("ReaderReadUpTo", reader_handle=r, queue_handle=q, num_records=tf.constant(3, tf.int64)))
    none = list(op("ReaderReadUpTo", reader_handle=r, queue_handle=q, num_records=tf.constant(0, tf.int64)))
    counts = [op("ReaderNumRecordsProduced", reader_handle=r), op("ReaderNumWorkUnitsCompleted", reader_handle=r)]
    state, given = op("ReaderSerializeState", reader_handle=r), tf1.placeholder(tf.string, None)
    back, reset = op("ReaderRestoreState", reader_handle=r, state=given), op("ReaderReset", reader_handle=r)
    runs = [(f, None) for f in (counts, put, one, counts, state, none, three, counts, put, one, shut, three, three, three, three, one, counts, state)]
    got = same_steps(target, runs)
    saved = got[4] if isinstance(got[4], bytes) else b"\x08\x01\x10\x01\x18\x01"
    same_steps(target, [(put, None), (one, None), (reset, None), (counts, None), (one, None), (back, {given: saved}), (counts, None), (state, None), (back, {given: b"no state"}), (counts, None),
                        (back, {given: [saved]}), (back, {given: b""}), (put, None), (one, None)])


def test_fixed_length_reader(target, files):
    """(TensorFlow 2 cannot make the first kind, for want of an attribute that only the second has. The second does the same.)"""
    def program(where, v):
        age(25)
        q = op("FIFOQueue" + v, component_types=[tf.string], shapes=[[]])
        put = op("QueueEnqueueMany" + v, handle=q, components=[[str(files / f"fixed{i}") for i in range(2)]])
        shut = op("QueueClose" + v, handle=q)
        r = op("FixedLengthRecordReader" + v, header_bytes=2, record_bytes=5, footer_bytes=1, hop_bytes=hop)
        one = list(op("ReaderRead" + v, reader_handle=r, queue_handle=q))
        two = list(op("ReaderReadUpTo" + v, reader_handle=r, queue_handle=q, num_records=tf.constant(2, tf.int64)))
        counts = [op("ReaderNumRecordsProduced" + v, reader_handle=r), op("ReaderNumWorkUnitsCompleted" + v, reader_handle=r)]
        return steps(where, [(f, None) for f in (put, shut, one, two, counts, two, two, one, one, counts)])

    for hop in (0, 3):
        both.agree(program(target, ""), program("", "V2"))


@pytest.mark.parametrize("kind", ["WholeFileReaderV2", "IdentityReaderV2", "TextLineReaderV2"])
def test_reader_state(target, files, kind):
    """The same with resource handles, and a state that goes from TensorFlow's reader to ours and back."""
    q = op("FIFOQueueV2", component_types=[tf.string], shapes=[[]])
    put = op("QueueEnqueueManyV2", handle=q, components=[[str(files / f"lines{i}") for i in range(2)]])
    r = op(kind)
    one = list(op("ReaderReadV2", reader_handle=r, queue_handle=q))
    counts = [op("ReaderNumRecordsProducedV2", reader_handle=r), op("ReaderNumWorkUnitsCompletedV2", reader_handle=r)]
    state, given = op("ReaderSerializeStateV2", reader_handle=r), tf1.placeholder(tf.string, None)
    back = op("ReaderRestoreStateV2", reader_handle=r, state=given)
    got = same_steps(target, [(f, None) for f in (put, one, state, one, state, counts)])
    for i in (2, 4):
        if not isinstance(got[i], both.Failed):
            same_steps(target, [(f, {given: got[i]}) for f in (back, counts, state, put, one, state, counts)])
    same_steps(target, [(back, {given: s}) for s in (b"junk", b"", [b"a", b"b"])] + [(counts, None)])


# ---- small ones -----------------------------------------------------------------------------------------------------


def test_placeholder_v2(target):
    age(22)
    p, q = op("PlaceholderV2", dtype=tf.float32, shape=[2, 2]), op("PlaceholderV2", dtype=tf.string, shape=None)
    both.same(target, [p * 2.0, tf.shape(q), q], {p: [[1, 2], [3, 4]], q: ["a", "b", "c"]})
    both.same(target, [p * 2.0])
    both.same(target, [q])


def test_top_k(target):
    """k as an attribute. (TensorFlow 2 has lost the kernel by a mistake in its registration; the second kind is the same but for where k stands.)"""
    def check(x, k):
        got = []
        for where, name, producer in ("", "TopKV2", 26), (target, "TopK", 6):
            age(producer)
            got += both.run(where, list(op(name, input=tf1.placeholder_with_default(x, None), k=k)))
        if isinstance(got[0], both.Failed):
            assert isinstance(got[1], both.Failed) and got[0].code == got[1].code, got
        else:
            both.close(got[1], got[0], 0, 0)

    for t in (np.float32, np.float64, np.int32, np.int64, np.uint8, np.float16):
        for k in (0, 1, 3, 4):
            check(np.array([[1, 5, 3, 5], [4, 4, 0, 2]], t), k)
    check(np.ones(2), 3)
    check(np.float32(1), 1)
    check(np.zeros((0, 3)), 2)


def test_random_poisson(target):
    """Its numbers are those of TensorFlow, run after run."""
    age(24)
    for t in (tf.float16, tf.float32, tf.float64):
        for rate in (0.5, 4.0, 25.0, 1e4 if t != tf.float16 else 100.0):
            both.same(target, op("RandomPoisson", shape=[50], rate=tf.constant([rate, rate * 2], t), seed=3, seed2=4), times=2)
    both.same(target, op("RandomPoisson", shape=tf.constant([2, 3], tf.int64), rate=tf.constant([[1.0], [2.0]]), seed=8, seed2=1))
    both.same(target, op("RandomPoisson", shape=[0], rate=tf.constant([1.0]), seed=3, seed2=4))
    both.same(target, op("RandomPoisson", shape=tf1.placeholder_with_default([-1], [1]), rate=tf.constant([1.0]), seed=3, seed2=4))


def test_fake_param(target):
    """A tensor whose contents nobody looks at: its shape and type count."""
    for t, s in ((tf.float32, [2, 3]), (tf.int64, []), (tf.string, [4]), (tf.float32, [0, 7])):
        f = op("FakeParam", dtype=t, shape=s)
        want, got = both.run("", f)[0], both.run(target, f)[0]
        assert np.shape(got) == np.shape(want) == tuple(s) and np.asarray(got).dtype == np.asarray(want).dtype
    both.same(target, op("FakeParam", dtype=tf.float32, shape=[None, 2]))


@pytest.mark.asan
def test_random_crop(target):
    """At TensorFlow's places, run after run."""
    age(7)
    for t in (tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64, tf.float32, tf.float64):
        x = tf.cast(tf.reshape(tf.range(120), [8, 5, 3]), t)
        for h, w in (3, 2), (8, 5), (8, 1), (1, 5), (0, 2):
            both.same(target, op("RandomCrop", image=x, size=tf.constant([h, w], tf.int64), seed=h + 1, seed2=w), times=5)
        both.same(target, op("RandomCrop", image=x, size=tf.constant([9, 2], tf.int64)))
        both.same(target, op("RandomCrop", image=x, size=tf.constant([2, 6], tf.int64)))
    shape = tf1.placeholder_with_default(tf.constant([2], tf.int64), None)
    both.same(target, op("RandomCrop", image=x, size=shape))
    both.same(target, op("RandomCrop", image=tf1.placeholder_with_default(x[0], None), size=tf.constant([2, 2], tf.int64)))


def test_adjust_contrast(target):
    age(1)
    for t in (tf.uint8, tf.int8, tf.int16, tf.int32, tf.float32, tf.float64):
        for shape in [4, 5, 3], [2, 3, 4, 1], [0, 2, 3]:
            x = tf.cast(tf.reshape(tf.range(np.prod(shape)) * 37 % 101, shape), t)
            for factor in 0.5, 2.0, -3.0:
                both.same(target, op("AdjustContrast", images=x, contrast_factor=factor, min_value=5.0, max_value=90.0), rtol=1e-5, atol=1e-4)
    both.same(target, op("AdjustContrast", images=tf1.placeholder_with_default(tf.ones([2, 3]), None), contrast_factor=1.0, min_value=5.0, max_value=90.0))
    for i in range(3):
        v = [tf1.placeholder_with_default([1.0] if j == i else 1.0, None) for j in range(3)]
        both.same(target, op("AdjustContrast", images=tf.ones([2, 2, 3]), contrast_factor=v[0], min_value=v[1], max_value=v[2]))


def test_batch_norm(target):
    """The one of the first Inception graphs."""
    age(8)
    rng = np.random.RandomState(3)
    for t in (tf.float32, tf.float64, tf.float16):
        tol = dict(rtol=3e-2, atol=3e-2) if t == tf.float16 else dict(rtol=1e-4, atol=1e-4)
        for shape in [2, 3, 4, 5], [1, 1, 1, 1], [0, 2, 2, 3]:
            vec = [tf.constant(rng.rand(shape[3]) + 0.5, t) for _ in range(4)]
            x, d = tf.constant(rng.rand(*shape), t), tf.constant(rng.rand(*shape) - 0.5, t)
            for scaled in True, False:
                a = dict(variance_epsilon=0.01, scale_after_normalization=scaled)
                both.same(target, op("BatchNormWithGlobalNormalization", t=x, m=vec[0], v=vec[1], beta=vec[2], gamma=vec[3], **a), **tol)
                both.same(target, list(op("BatchNormWithGlobalNormalizationGrad", t=x, m=vec[0], v=vec[1], gamma=vec[3], backprop=d, **a)), **tol)
    x = tf.ones([2, 2, 2, 3])
    for bad in range(5):
        good = [x] + [tf.ones([3])] * 4
        good[bad] = tf1.placeholder_with_default(tf.ones([3, 3]), None)
        both.same(target, op("BatchNormWithGlobalNormalization", **dict(zip(("t", "m", "v", "beta", "gamma"), good)), **a))
