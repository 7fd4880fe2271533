"""Ops that Python no longer makes, but old graphs hold: reference handles of queues, barriers, stacks, tables; and small ones that only raw graphs use."""
import time

import numpy as np
import pytest
import tensorflow as tf

import both

tf1 = tf.compat.v1


@pytest.fixture
def target(shared):
    tf1.reset_default_graph()
    return shared.target("worker")


def op(name, **kw):
    return getattr(tf.raw_ops, name)(**kw)


def after(deps, make):
    with tf1.control_dependencies([d.op if hasattr(d, "op") else d for d in deps]):
        return make()


QUEUES = [
    ("FIFOQueue", "FIFOQueueV2", dict(component_types=[tf.int64, tf.string], shapes=[[], []])),
    ("PaddingFIFOQueue", "PaddingFIFOQueueV2", dict(component_types=[tf.int64, tf.string], shapes=[[], []])),
    ("PriorityQueue", "PriorityQueueV2", dict(component_types=[tf.string], shapes=[[], []])),
    ("RandomShuffleQueue", "RandomShuffleQueueV2", dict(component_types=[tf.int64, tf.string], shapes=[[], []], seed=3, seed2=5, min_after_dequeue=0)),
]


@pytest.mark.parametrize("old,new,attrs", QUEUES, ids=[q[0] for q in QUEUES])
def test_queues(target, old, new, attrs):
    for name, v in ((old, ""), (new, "V2")):
        q = op(name, capacity=10, shared_name="%s_%s" % (name, time.monotonic()), **attrs)
        types = [tf.int64, tf.string]
        x = np.array([3, 1, 2], np.int64)
        put = op("QueueEnqueueMany" + v, handle=q, components=[tf.constant(x), tf.constant(["c", "a", "b"])])
        one = after([put], lambda: op("QueueEnqueue" + v, handle=q, components=[tf.constant(7, tf.int64), tf.constant("z")]))
        size = after([one], lambda: op("QueueSize" + v, handle=q))
        first = after([size], lambda: op("QueueDequeue" + v, handle=q, component_types=types))
        two = after(first, lambda: op("QueueDequeueMany" + v, handle=q, n=2, component_types=types))
        shut = after(two, lambda: op("QueueClose" + v, handle=q))
        rest = after([shut], lambda: op("QueueDequeueUpTo" + v, handle=q, n=5, component_types=types))
        closed = after(rest, lambda: op("QueueIsClosed" + v, handle=q))
        both.same(target, [size, first, two, rest, closed])
        tf1.reset_default_graph()


def test_queue_as_tensor(target):
    """FakeQueue: a resource handle where an old op wants a string."""
    q = op("FIFOQueueV2", component_types=[tf.int32], shapes=[[]], shared_name="faked")
    fake = op("FakeQueue", resource=q)
    put = op("QueueEnqueue", handle=fake, components=[tf.constant(4)])
    both.same(target, after([put], lambda: op("QueueSize", handle=fake)))


def test_barrier(target):
    b = op("Barrier", component_types=[tf.float32, tf.int32], shapes=[[], []], shared_name="b")
    i0 = op("BarrierInsertMany", handle=b, keys=["a", "b"], values=[1.0, 2.0], component_index=0)
    half = after([i0], lambda: [op("BarrierReadySize", handle=b), op("BarrierIncompleteSize", handle=b)])
    i1 = after(half, lambda: op("BarrierInsertMany", handle=b, keys=["b", "a"], values=[20, 10], component_index=1))
    got = after([i1], lambda: op("BarrierTakeMany", handle=b, num_elements=2, component_types=[tf.float32, tf.int32]))
    shut = after([got[0]], lambda: op("BarrierClose", handle=b))
    both.same(target, [half, list(got), after([shut], lambda: op("BarrierReadySize", handle=b))])


def test_accumulators(target):
    for name, v in (("ConditionalAccumulator", ""), ("ResourceConditionalAccumulator", "Resource")):
        a = op(name, dtype=tf.float32, shape=[2], shared_name=name)
        put = [op(v + "AccumulatorApplyGradient", handle=a, local_step=tf.constant(0, tf.int64), gradient=[float(i), 1.0]) for i in (1, 2)]
        n = after(put, lambda: op(v + "AccumulatorNumAccumulated", handle=a))
        got = after([n], lambda: op(v + "AccumulatorTakeGradient", handle=a, num_required=2, dtype=tf.float32))
        step = after([got], lambda: op(v + "AccumulatorSetGlobalStep", handle=a, new_global_step=tf.constant(9, tf.int64)))
        both.same(target, [n, got, after([step], lambda: op(v + "AccumulatorNumAccumulated", handle=a))])


def test_stacks(target):
    for v in ("", "V2"):
        s = op("Stack" + v, elem_type=tf.float32, stack_name="s" + v, **({"max_size": 5} if v else {}))
        a = op("StackPush" + v, handle=s, elem=[1.0, 2.0])
        b = after([a], lambda: op("StackPush" + v, handle=s, elem=[[3.0]]))
        x = after([b], lambda: op("StackPop" + v, handle=s, elem_type=tf.float32))
        y = after([x], lambda: op("StackPop" + v, handle=s, elem_type=tf.float32))
        end = after([y], lambda: op("StackClose" + v, handle=s))
        both.same(target, after([end], lambda: [tf.identity(x), tf.identity(y)]))


def test_stages(target):
    kw = dict(dtypes=[tf.int32, tf.string], shared_name="st", capacity=4)
    put = op("Stage", values=[1, "a"], **{k: v for k, v in kw.items() if k != "dtypes"})
    more = after([put], lambda: op("Stage", values=[2, "b"], **{k: v for k, v in kw.items() if k != "dtypes"}))
    peek = after([more], lambda: op("StagePeek", index=1, **kw))
    size = after(peek, lambda: op("StageSize", **kw))
    got = after([size], lambda: op("Unstage", **kw))
    clear = after(got, lambda: op("StageClear", **kw))
    both.same(target, [list(peek), size, list(got), after([clear], lambda: op("StageSize", **kw))])


def test_old_tables(target, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("a\nb\nc\n")
    t = op("HashTable", key_dtype=tf.string, value_dtype=tf.int64, shared_name="ht")
    init = op("InitializeTableFromTextFile", table_handle=t, filename=str(words), key_index=-2, value_index=-1)
    both.same(target, after([init], lambda: op("LookupTableFind", table_handle=t, keys=["b", "x"], default_value=tf.constant(-1, tf.int64))))
    m = op("MutableHashTable", key_dtype=tf.string, value_dtype=tf.float32, shared_name="mht")
    put = op("LookupTableInsert", table_handle=m, keys=["k", "l"], values=[1.0, 2.0])
    both.same(target, after([put], lambda: [op("LookupTableFind", table_handle=m, keys=["l"], default_value=0.0), op("LookupTableSize", table_handle=m)]))
    imp = op("LookupTableImport", table_handle=m, keys=["z"], values=[9.0])
    both.same(target, list(after([imp], lambda: op("LookupTableExport", table_handle=m, Tkeys=tf.string, Tvalues=tf.float32))))
    m = op("MutableHashTableOfTensors", key_dtype=tf.int64, value_dtype=tf.float32, value_shape=[2], shared_name="mhtt")
    put = op("LookupTableInsert", table_handle=m, keys=np.array([5]), values=[[1.0, 2.0]])
    both.same(target, after([put], lambda: op("LookupTableFind", table_handle=m, keys=np.array([5, 6]), default_value=[0.0, 0.0])))


def test_variables(target):
    v = op("Variable", shape=[2], dtype=tf.float32, shared_name="old_v")
    init = op("Assign", ref=v, value=[1.0, 2.0], validate_shape=True)
    both.same(target, after([init], lambda: op("RefIdentity", input=v)))
    t = op("TemporaryVariable", shape=[2], dtype=tf.float32, var_name="tmp")
    a = op("Assign", ref=t, value=[1.0, 2.0], validate_shape=True)
    b = after([a], lambda: op("AssignAdd", ref=t, value=[1.0, 1.0]))
    both.same(target, op("DestroyTemporaryVariable", ref=b, var_name="tmp"))
    r = tf1.get_variable("res", initializer=np.arange(12, dtype=np.float32).reshape(4, 3), use_resource=True)
    init = tf1.global_variables_initializer()
    both.same(target, [op("ResourceGather", resource=r.handle, indices=[3, 0], dtype=tf.float32), op("ResourceGatherNd", resource=r.handle, indices=[[1, 2], [0, 0]], dtype=tf.float32),
                       op("VariableShape", input=r.handle), op("VariableShape", input=r.handle, out_type=tf.int64)], before=[init])
    cut = op("ResourceStridedSliceAssign", ref=r.handle, begin=[1, 0], end=[3, 2], strides=[1, 1], value=[[1.0, 2.0], [3.0, 4.0]])
    both.same(target, after([cut], lambda: r.read_value()), before=[init])
    off = op("DisableCopyOnRead", resource=r.handle)
    both.same(target, after([off], lambda: r.read_value()), before=[init])
    c = tf1.get_variable("cnt", initializer=np.int32(0), use_resource=True)
    both.same(target, op("ResourceCountUpTo", resource=c.handle, limit=2, T=tf.int32), before=[tf1.variables_initializer([c])], times=3)
    w = tf1.get_variable("refv", initializer=np.zeros((3, 2), np.float32), use_resource=False)
    cut = op("StridedSliceAssign", ref=w._ref(), begin=[1], end=[2], strides=[1], value=[[5.0, 6.0]])
    both.same(target, cut, before=[tf1.variables_initializer([w])])


def test_small_ones(target, tmp_path):
    x = tf1.placeholder_with_default(tf.constant([1.0, -2.0]), [2])
    both.same(target, [op("AccumulateNV2", inputs=[x, x, x], shape=[2]), op("StopGradient", input=x), op("PreventGradient", input=x, message="m"), op("Snapshot", input=x),
                       list(op("IdentityN", input=[x, tf.constant(3)])), op("GuaranteeConst", input=x), op("CheckNumericsV2", tensor=x, message="bad"),
                       op("Print", input=x, data=[x], message="seen: "), op("ShardedFilespec", basename="b", num_shards=3)])
    both.same(target, op("CheckNumericsV2", tensor=x / 0.0, message="bad"))
    f = str(tmp_path / "f")
    both.same(target, after([op("WriteFile", filename=f, contents="some text")], lambda: op("ReadFile", filename=f)))
    both.same(target, op("ReadFile", filename=f + "-none"))
    with tf1.control_dependencies([op("PrintV2", input="to stderr")]):
        both.same(target, tf.identity(x))
    got = both.run(target, [op("Timestamp")])[0][0]
    assert got > 1.6e9


def test_functional_control_flow(target):
    """Conditions and loops as functions, stateless and not, kept as they are or lowered."""
    tf1.enable_control_flow_v2()
    try:
        x = tf1.placeholder_with_default(tf.constant(3), [])
        f, g = (tf.function(h).get_concrete_function(tf.TensorSpec([], tf.int32)) for h in (lambda a: a + 1, lambda a: a * 10))
        less = tf.function(lambda a: a < 100).get_concrete_function(tf.TensorSpec([], tf.int32))
        for c in (f, g, less):
            c.add_to_graph()
        for lower in (True, False):
            for name in ("If", "StatelessIf"):
                y = op(name, cond=x > 2, input=[x], Tout=[tf.int32], then_branch=f, else_branch=g)
                y[0].op._set_attr("_lower_using_switch_merge", tf1.AttrValue(b=lower))
                both.same(target, list(y))
                both.same(target, list(y), {x: 1})
            for name in ("While", "StatelessWhile"):
                y = op(name, input=[x], cond=less, body=g)
                y[0].op._set_attr("_lower_using_switch_merge", tf1.AttrValue(b=lower))
                both.same(target, list(y))
            for name in ("Case", "StatelessCase"):
                y = op(name, branch_index=x - 3, input=[x], Tout=[tf.int32], branches=[f, g])
                y[0].op._set_attr("_lower_using_switch_merge", tf1.AttrValue(b=lower))
                both.same(target, list(y))
                both.same(target, list(y), {x: 50})
        both.same(target, [list(op("PartitionedCall", args=[x], Tout=[tf.int32], f=g)), list(op("StatefulPartitionedCall", args=[x], Tout=[tf.int32], f=f))])
    finally:
        tf1.disable_control_flow_v2()


def test_session_handles(target):
    """Tensors that stay in the session under a handle."""
    with tf1.Session(target) as s:
        h = s.run(tf1.get_session_handle(tf.constant([1.0, 2.0]) * 2.0))
        holder, t = tf1.get_session_tensor(h.handle, tf.float32)
        assert s.run(t + 1.0, {holder: h.handle}).tolist() == [3.0, 5.0]
        h.delete()
    with tf1.Session(target) as s:
        with pytest.raises(tf.errors.OpError):
            s.run(t, {holder: h.handle})


def test_save_v1(target, tmp_path):
    """The first checkpoint format, from ours and from TensorFlow's session."""
    for who in ("", target):
        path = str(tmp_path / ("ckpt" + ("_trn" if who else "_tf")))
        names, data = ["a", "b"], [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([b"x", b"yy"], object)]
        both.run(who, op("Save", filename=path, tensor_names=names, data=data))
        both.same(target, [op("Restore", file_pattern=path, tensor_name="a", dt=tf.float32), op("RestoreSlice", file_pattern=path, tensor_name="a", shape_and_slice="2 3 0,2:1,1", dt=tf.float32)])


def test_gradients_watched_by_a_debugger(target):
    """DebugGradientIdentity and its version for references: they pass on what comes."""
    from tensorflow.python.debug.lib import debug_gradients
    with tf.device("/job:ps/task:0"):
        v = tf1.get_variable("watched%d" % time.monotonic_ns(), initializer=tf.constant([1.0, 2.0]), use_resource=False)
        d = debug_gradients.GradientsDebugger()
        y = tf.reduce_sum(tf.square(d.identify_gradient(tf.square(d.identify_gradient(v._ref())))))
        g = tf.gradients(y, v)
    assert {o.type for o in tf1.get_default_graph().get_operations()} >= {"DebugGradientIdentity", "DebugGradientRefIdentity"}
    with tf1.Session(target) as s:
        s.run(v.initializer)
        np.testing.assert_array_equal(s.run(g)[0], [4, 32])
