"""TensorArrays and TensorLists op by op, with what they refuse, against TensorFlow's own session."""
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import gen_data_flow_ops as g
from tensorflow.python.ops import gen_list_ops as gl

import both

tf1 = tf.compat.v1


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


def chain(flow, *ops):
    """Array ops one after the other, each on the flow of the one before."""
    for op in ops:
        flow = op(flow)
    return flow


def array(size=3, dtype=tf.float32, **kw):
    h, flow = g.tensor_array_v3(size=size, dtype=dtype, **kw)
    return h, flow


def write(h, i, v):
    return lambda flow: g.tensor_array_write_v3(h, i, v, flow)


def test_write_read_gather_concat(target):
    for clear in (True, False):
        h, flow = array(3, clear_after_read=clear)
        flow = chain(flow, write(h, 0, [1.0, 2.0]), write(h, 2, [3.0, 4.0]), write(h, 1, [5.0, 6.0]))
        r = g.tensor_array_read_v3(h, 1, flow, tf.float32)
        both.same(target, r)
        both.same(target, g.tensor_array_gather_v3(h, [2, 0], flow, tf.float32))
        both.same(target, g.tensor_array_gather_v3(h, [2, 2], flow, tf.float32))  # fails if cleared
        both.same(target, g.tensor_array_concat_v3(h, flow, tf.float32))
        both.same(target, g.tensor_array_size_v3(h, flow))
        with tf1.control_dependencies([r]):
            both.same(target, g.tensor_array_read_v3(h, 1, flow, tf.float32))
            both.same(target, write(h, 1, [0.0, 0.0])(flow))
        with tf1.control_dependencies([flow]):
            closed = g.tensor_array_close_v3(h)
        with tf1.control_dependencies([closed]):
            both.same(target, g.tensor_array_read_v3(h, 1, flow, tf.float32))


def test_scatter_split_and_every_dtype(target):
    for t in (np.float32, np.float64, np.float16, np.int32, np.int64, np.int8, np.uint8, np.complex64, np.bool_, object):
        v = np.array([b"a", b"", b"ccc"], object) if t is object else np.array([1, 0, 3]).astype(t)
        dt = tf.string if t is object else tf.as_dtype(t)
        h, flow = array(3, dt)
        flow = g.tensor_array_scatter_v3(h, [2, 0, 1], v, flow)
        both.same(target, g.tensor_array_gather_v3(h, [0, 1, 2], flow, dt))
        h, flow = array(2, dt)
        flow = g.tensor_array_split_v3(h, v, tf.constant([1, 2], tf.int64), flow)
        both.same(target, [g.tensor_array_concat_v3(h, flow, dt)])
        h, flow = array(2, dt)
        flow = g.tensor_array_split_v3(h, v, tf.constant([3, 0], tf.int64), flow)
        both.same(target, [g.tensor_array_read_v3(h, 1, flow, dt)])
        h, flow = array(1, dt, element_shape=[2])
        both.same(target, g.tensor_array_read_v3(h, 0, flow, dt))  # zeros, but there are none of strings


def test_what_arrays_refuse(target):
    h, flow = array(2)
    w = write(h, 0, [1.0])(flow)
    for t in (
        write(h, 2, [1.0])(flow),
        write(h, -1, [1.0])(flow),
        write(h, 0, [2.0])(w),
        write(h, 0, tf.constant([2]))(flow),
        g.tensor_array_read_v3(h, 1, w, tf.float32),
        g.tensor_array_read_v3(h, 2, w, tf.float32),
        g.tensor_array_read_v3(h, -1, w, tf.float32),
        g.tensor_array_read_v3(h, 0, w, tf.int32),
        g.tensor_array_gather_v3(h, tf.constant([], tf.int32), w, tf.float32),
        g.tensor_array_gather_v3(h, [0], w, tf.float32, element_shape=[2]),
        g.tensor_array_gather_v3(h, tf.constant([], tf.int32), w, tf.float32, element_shape=[2, 3]),
        g.tensor_array_gather_v3(h, [0, 1], write(h, 1, [1.0, 2.0])(w), tf.float32),
        g.tensor_array_concat_v3(h, write(h, 1, 3.0)(w), tf.float32),
        g.tensor_array_scatter_v3(h, [0, 1], tf1.placeholder_with_default([1.0], None), flow),
        g.tensor_array_scatter_v3(h, [0, 5], [1.0, 2.0], flow),
        g.tensor_array_split_v3(h, [1.0], tf.constant([1], tf.int64), flow),
        g.tensor_array_split_v3(h, [1.0], tf.constant([1, 1], tf.int64), flow),
    ):
        both.same(target, t)
    both.same(target, array(tf1.placeholder_with_default(-1, ()))[1])
    h, flow = array(1, element_shape=[None, 2])
    both.same(target, write(h, 0, tf1.placeholder_with_default([[1.0]], None))(flow))
    h, flow = array(0, dynamic_size=True, identical_element_shapes=True)
    both.same(target, g.tensor_array_size_v3(h, write(h, 4, [1.0])(flow)))
    both.same(target, write(h, 1, [1.0, 2.0])(write(h, 0, [1.0])(flow)))
    h, flow = array(0, dynamic_size=True, element_shape=[2])
    both.same(target, g.tensor_array_gather_v3(h, [0, 1], write(h, 1, [1.0, 2.0])(flow), tf.float32))


def test_gradient_arrays(target):
    h, flow = array(3, clear_after_read=False)
    flow = chain(flow, write(h, 0, [1.0, 2.0]), write(h, 1, [3.0, 4.0]))
    gh, gf = g.tensor_array_grad_v3(h, flow, source="gradients")
    gf = chain(gf, write(gh, 0, [10.0, 20.0]), write(gh, 0, [1.0, 1.0]))
    again, _ = g.tensor_array_grad_v3(h, gf, source="gradients")
    other, of = g.tensor_array_grad_v3(h, gf, source="gradients_1")
    for t in (
        g.tensor_array_read_v3(again, 0, gf, tf.float32),
        g.tensor_array_gather_v3(gh, [0, 1], gf, tf.float32),
        g.tensor_array_read_v3(gh, 2, gf, tf.float32),
        g.tensor_array_read_v3(other, 0, of, tf.float32),
        write(gh, 1, [1.0])(gf),
        g.tensor_array_grad_v3(gh, gf, source="x")[1],
        write(h, 3, [1.0, 2.0])(gf),
    ):
        both.same(target, t)
    ph, pf = g.tensor_array_grad_with_shape(h, flow, [2], source="s")
    both.same(target, g.tensor_array_read_v3(ph, 0, pf, tf.float32))


F = tf.float32


def lst(n=3, shape=(2,), t=F):
    v = np.arange(n * int(np.prod(shape))).reshape((n,) + tuple(shape))
    return gl.tensor_list_from_tensor(tf.cast(v, t), tf.constant(shape, tf.int32))


def stack(h, shape=-1, t=F, n=-1):
    return gl.tensor_list_stack(h, shape, t, n)


def test_lists(target):
    h = lst()
    r = gl.tensor_list_reserve(tf.constant([2], tf.int32), 3, F)
    u = gl.tensor_list_reserve(tf.constant(-1, tf.int32), 3, F)
    e = gl.empty_tensor_list([2], 4, F)
    set1 = gl.tensor_list_set_item(r, 1, [5.0, 6.0])
    uset = gl.tensor_list_set_item(u, 2, [5.0, 6.0, 7.0])
    for t in (
        [stack(h), stack(r), stack(set1), stack(uset)],
        [stack(gl.tensor_list_push_back(h, [9.0, 9.0])), stack(h)],
        gl.tensor_list_get_item(set1, 1, [2], F),
        gl.tensor_list_get_item(set1, 0, [2], F),
        gl.tensor_list_get_item(uset, 0, -1, F),
        gl.tensor_list_get_item(u, 0, [3], F),
        [gl.tensor_list_length(h), gl.tensor_list_length(e), gl.tensor_list_element_shape(h, tf.int32), gl.tensor_list_element_shape(u, tf.int64)],
        [stack(gl.tensor_list_pop_back(h, [2], F)[0]), gl.tensor_list_pop_back(h, [2], F)[1], gl.tensor_list_pop_back(r, [2], F)[1]],
        stack(gl.tensor_list_resize(h, 5)),
        stack(gl.tensor_list_resize(h, 1)),
        [gl.tensor_list_gather(h, [2, 0, 0], [2], F), gl.tensor_list_gather(uset, [0, 2], -1, F)],
        stack(gl.tensor_list_scatter(tf.constant([[1.0], [2.0]]), [3, 1], [1])),
        stack(gl.tensor_list_scatter_v2(tf.constant([[1.0], [2.0]]), [3, 1], [1], 6)),
        stack(gl.tensor_list_scatter_into_existing_list(h, tf.constant([[1.0, 2.0]]), [3])),
        gl.tensor_list_concat(lst(2, (2, 2)), F),
        gl.tensor_list_concat_v2(gl.tensor_list_set_item(r, 1, [5.0, 6.0]), [2], tf.constant([], tf.int64), F),
        gl.tensor_list_concat_v2(gl.tensor_list_set_item(u, 1, [5.0]), [-1], tf.constant([2, 1, 3], tf.int64), F),
        [stack(gl.tensor_list_concat_lists(h, h, F))],
        gl.tensor_list_get_item(gl.tensor_list_split(tf.constant([1.0, 2.0, 3.0]), [-1], tf.constant([1, 2], tf.int64)), 1, -1, F),
        stack(gl.tensor_list_set_item(h, 6, [1.0, 1.0], resize_if_index_out_of_bounds=True)),
        stack(tf1.add_n([h, set1, h])),
        stack(tf.zeros_like(h)),
        stack(tf1.add_n([uset, gl.tensor_list_set_item(u, 0, [1.0, 1.0, 1.0])])),
        stack(gl.empty_tensor_list([2], 4, F), [2]),
    ):
        both.same(target, t)


def test_lists_of_lists_and_batches(target):
    inner = lst()
    outer = gl.tensor_list_push_back(gl.empty_tensor_list(tf.constant([], tf.int32), -1, tf.variant), inner)
    outer = gl.tensor_list_push_back(outer, gl.tensor_list_push_back(inner, [9.0, 9.0]))
    got = gl.tensor_list_get_item(outer, 1, tf.constant([], tf.int32), tf.variant)
    total = gl.tensor_list_get_item(tf1.add_n([outer, outer]), 1, tf.constant([], tf.int32), tf.variant)
    batch = gl.tensor_list_push_back_batch(tf.stack([inner, inner]), [[1.0, 2.0], [3.0, 4.0]])
    both.same(target, [stack(got), stack(total), stack(batch[0]), stack(batch[1])])


def test_what_lists_refuse(target):
    p = tf1.placeholder_with_default  # hides from the client what only the kernels should find
    h, u = p(lst(), ()), p(gl.tensor_list_reserve(tf.constant(-1, tf.int32), 3, F), ())
    any1 = p(np.array([1.0], np.float32), None)
    for t in (
        stack(h, n=2),
        stack(u),
        stack(h, p([3], None)),
        stack(h, t=tf.int32),
        stack(gl.empty_tensor_list(-1, -1, F)),
        gl.tensor_list_push_back(h, any1),
        gl.tensor_list_push_back(gl.empty_tensor_list([1], 0, F), any1),
        gl.tensor_list_pop_back(gl.empty_tensor_list([1], 0, F), [1], F)[1],
        gl.tensor_list_get_item(h, 3, [2], F),
        gl.tensor_list_get_item(u, 0, -1, F),
        gl.tensor_list_set_item(h, 3, [1.0, 1.0]),
        gl.tensor_list_set_item(h, 0, any1),
        gl.tensor_list_gather(h, [3], [2], F),
        gl.tensor_list_gather(u, [-1], [2], F),
        gl.tensor_list_resize(h, p(-1, ())),
        gl.tensor_list_reserve(tf.constant([2], tf.int32), p(-1, ()), F),
        gl.tensor_list_reserve(p(5, None), 1, F),
        gl.tensor_list_scatter(any1, p([-1], None), tf.constant([], tf.int32)),
        gl.tensor_list_scatter(any1, [0, 1], tf.constant([], tf.int32)),
        gl.tensor_list_split(any1, [-1], tf.constant([2], tf.int64)),
        gl.tensor_list_split(any1, [-1], tf.constant([-1, 2], tf.int64)),
        gl.tensor_list_split(any1, p(np.array([], np.int32), None), tf.constant([1], tf.int64)),
        gl.tensor_list_concat(lst(2, ()), F)[0],
        gl.tensor_list_concat(u, F)[0],
        gl.tensor_list_concat_lists(h, lst(2, (3,)), F),
        tf1.add_n([h, lst(2)]),
        tf1.add_n([h, lst(3, (2,), tf.int32)]),
    ):
        if t.dtype == tf.variant:
            t = gl.tensor_list_length(t)
        both.same(target, t)


def test_quantized_numbers_are_cast_as_integers(target):
    x = tf1.placeholder_with_default(np.array([-3, 0, 5, 100, 127], np.int32), [5])
    for q in (tf.qint8, tf.quint8, tf.qint16, tf.quint16, tf.qint32):
        both.same(target, [tf.cast(tf.cast(x, q), t) for t in (tf.int32, tf.float32, tf.int64, tf.uint8, tf.bool)])
        both.same(target, tf.cast(tf.cast(tf.cast(x, tf.float32) * 1.5, q), tf.int32))


@pytest.mark.asan
def test_lists_cross_tasks(target):
    with tf.device("/job:ps/task:0"):
        full = gl.tensor_list_from_tensor(tf.reshape(tf.range(6.), [3, 2]), tf.constant([2]))
        partial = gl.tensor_list_set_item(gl.tensor_list_reserve(tf.constant([-1, 2]), tf.constant(3), tf.float32), 1, tf.ones([4, 2]))
        strings = gl.tensor_list_push_back(gl.empty_tensor_list(tf.constant(-1), 5, tf.string), tf.constant(["ab", "c" * 100]))
        nested = gl.tensor_list_push_back(gl.empty_tensor_list(tf.constant(-1), -1, tf.variant), full)
        empty = gl.empty_tensor_list(tf.constant([3, -1]), -1, tf.int64)
    with tf.device("/job:worker/task:0"):
        inner = gl.tensor_list_get_item(nested, 0, tf.constant(-1), tf.variant)
        got = [gl.tensor_list_stack(full, tf.constant([2]), tf.float32), gl.tensor_list_get_item(partial, 1, tf.constant(-1), tf.float32),
               gl.tensor_list_length(partial), gl.tensor_list_element_shape(partial, tf.int32), gl.tensor_list_length(empty),
               gl.tensor_list_element_shape(empty, tf.int64), gl.tensor_list_get_item(strings, 0, tf.constant(-1), tf.string),
               gl.tensor_list_stack(inner, tf.constant([2]), tf.float32),
               gl.tensor_list_stack(gl.tensor_list_push_back(full, tf.constant([8., 9.])), tf.constant([2]), tf.float32)]
        limit = gl.tensor_list_length(gl.tensor_list_push_back_batch(tf.stack([strings]), tf.constant([["q"]]))[0])
        for _ in range(6):
            strings = gl.tensor_list_push_back(strings, tf.constant("x"))
        too_many = gl.tensor_list_length(strings)
    with tf1.Session(target) as s:
        want = [np.arange(6.).reshape(3, 2), np.ones([4, 2]), 3, [-1, 2], 0, [3, -1], [b"ab", b"c" * 100], np.arange(6.).reshape(3, 2),
                np.concatenate([np.arange(6.), [8, 9]]).reshape(4, 2)]
        for a, b in zip(s.run(got), want):
            np.testing.assert_array_equal(a, b)
        with pytest.raises(tf.errors.InvalidArgumentError):
            s.run(too_many)
        assert s.run(limit) == 2


def test_a_variant_that_holds_a_number(target):
    from tensorflow.core.framework import tensor_pb2
    pb = tensor_pb2.TensorProto(dtype=tf.variant.as_datatype_enum, tensor_shape=tf.TensorShape([2]).as_proto(),
                                variant_val=[tensor_pb2.VariantTensorDataProto(type_name=b"int", metadata=np.int32(1).tobytes())])
    for device in ("/job:ps/task:0", "/job:worker/task:0"):
        with tf.device(device):
            v = tf.constant(pb)
            zero = tf.zeros_like(v)
        with tf.device("/job:worker/task:0"):
            shape = tf.shape(zero), tf1.Print(zero, [v, zero]).op, tf.shape(tf.identity(v))
        with tf1.Session(target) as s:
            r = s.run(shape)
            assert r[0].tolist() == [2] and r[2].tolist() == [2]


def test_maps(target):
    from tensorflow.python.ops import gen_map_ops as gm
    f = lambda *x: tf.constant(x, tf.float32)
    m = gm.empty_tensor_map()
    two = gm.tensor_map_insert(gm.tensor_map_insert(m, tf.constant("a"), f(1, 2)), tf.constant("b"), f(3))
    again = gm.tensor_map_insert(two, tf.constant("a"), f(7))
    look = lambda h, k: gm.tensor_map_lookup(h, tf.constant(k), tf.float32)
    both.same(target, [gm.tensor_map_size(m), gm.tensor_map_size(two), gm.tensor_map_size(again), look(two, "a"), look(two, "b"), look(again, "a"),
                       gm.tensor_map_has_key(two, tf.constant("a")), gm.tensor_map_has_key(two, tf.constant("c")), gm.tensor_map_has_key(two, tf.constant(["a"])),
                       gm.tensor_map_size(gm.tensor_map_erase(two, tf.constant("a"), tf.float32)),
                       gm.tensor_map_size(tf.zeros_like(two)), look(tf.add_n([two, gm.tensor_map_insert(m, tf.constant("b"), f(10))]), "b")])
    keys = gm.tensor_map_insert(gm.tensor_map_insert(m, tf.constant([1, 2]), f(1)), tf.constant([3, 4]), f(1))
    with tf1.Session(target) as s:
        assert sorted(s.run(gm.tensor_map_stack_keys(keys, tf.int32)).tolist()) == [[1, 2], [3, 4]]
    for t in (look(two, "c"), look(m, "a"), gm.tensor_map_lookup(two, tf.constant(1), tf.float32), gm.tensor_map_stack_keys(m, tf.int32),
              gm.tensor_map_stack_keys(keys, tf.float32), gm.tensor_map_stack_keys(gm.tensor_map_insert(keys, tf.constant(1), f(1)), tf.int32),
              gm.tensor_map_size(gm.tensor_map_erase(two, tf.constant("c"), tf.float32)),
              gm.tensor_map_size(gl.empty_tensor_list(tf.constant(-1), -1, tf.float32))):
        both.same(target, t)


def test_rows_concatenated_in_parallel(target):
    p = tf1.placeholder_with_default
    for t in (tf.float32, tf.int64, tf.string):
        rows = [p(np.array([["%d" % i, "x"]], object) if t == tf.string else np.array([[i, i + 1]], t.as_numpy_dtype), [1, 2]) for i in range(3)]
        both.same(target, tf.raw_ops.ParallelConcat(values=rows, shape=[3, 2]))
    both.same(target, tf.raw_ops.ParallelConcat(values=rows[:1], shape=[1, 2]))


@pytest.mark.asan
def test_ragged_tensors_in_variants(target):
    from tensorflow.python.ops import gen_ragged_conversion_ops as gr
    for t in (tf.int32, tf.int64):
        a, b = tf.constant([0, 2, 2, 3], t), tf.constant([0, 1, 4, 6], t)
        for values in (tf.range(6.), tf.reshape(tf.range(12), [6, 2]), tf.constant(list("abcdef"))):
            for batched in (False, True):
                for splits in ([], [b], [a, b]):
                    e = gr.ragged_tensor_to_variant(splits, values, batched)
                    other = gr.ragged_tensor_to_variant(splits, tf1.placeholder_with_default(values, values.shape), batched)
                    d = 1 if batched else 0
                    both.same(target, list(gr.ragged_tensor_from_variant(e, -1, max(len(splits), d), values.dtype, Tsplits=t)))
                    both.same(target, list(gr.ragged_tensor_from_variant(tf.stack([e, other]), max(len(splits) - d, 0), max(len(splits) - d, 0) + d + 1, values.dtype, Tsplits=t)))
    e = gr.ragged_tensor_to_variant([b], tf.range(6.), False)
    for bad in (gr.ragged_tensor_from_variant(e, 1, 1, tf.int32, Tsplits=tf.int64), gr.ragged_tensor_from_variant(e, 0, 0, tf.float32, Tsplits=tf.int64),
                gr.ragged_tensor_from_variant(e, 1, 1, tf.float32, Tsplits=tf.int32),
                gr.ragged_tensor_to_variant([tf.constant([0, 7], tf.int64)], tf.range(6.), False),
                gr.ragged_tensor_to_variant([tf.constant([1, 6], tf.int64)], tf.range(6.), False)):
        both.same(target, tf.shape(bad[-1] if isinstance(bad, tuple) else bad))
    both.same(target, gr.ragged_tensor_from_variant(tf.zeros_like(e), 1, 1, tf.float32, Tsplits=tf.int64)[1])
    r = tf.ragged.constant([[1, 2], [], [3]])
    both.same(target, tf.map_fn(lambda x: x * 2, r, fn_output_signature=tf.RaggedTensorSpec([None], tf.int32, 0)).values)


def test_a_barrier_whose_shapes_nobody_has_said(target):
    from tensorflow.python.ops import data_flow_ops
    b = data_flow_ops.Barrier((tf.float32, tf.float32), name="unsaid")
    keys = [b"a", b"b", b"c"]
    both.same(target, b.ready_size())
    both.same(target, b.insert_many(0, keys, np.zeros((3, 0), np.float32)))
    both.same(target, b.incomplete_size(), before=[b.insert_many(0, keys, [1., 2., 3.])])


def test_ragged_in_variants(target):
    """Ragged tensors as one variant, or as one per row, and back; what the way back refuses."""
    p = tf1.placeholder_with_default
    to, back = tf.raw_ops.RaggedTensorToVariant, tf.raw_ops.RaggedTensorFromVariant
    for st in (np.int32, np.int64):
        for v in (np.arange(5, dtype=np.float32), np.arange(10).reshape(5, 2), np.array([b"a", b"bb", b"", b"d", b"e"], object)):
            dt = tf.string if v.dtype == object else tf.as_dtype(v.dtype)
            kw = dict(Tvalues=dt, Tsplits=tf.as_dtype(st))
            one, two = p(np.array([0, 2, 2, 5], st), None), p(np.array([0, 1, 3], st), None)
            for splits in ([one], [two, one]):
                n = len(splits)
                whole = to(rt_nested_splits=splits, rt_dense_values=v, batched_input=False)
                rows = to(rt_nested_splits=splits, rt_dense_values=v, batched_input=True)
                a, b = back(encoded_ragged=whole, input_ragged_rank=n, output_ragged_rank=n, **kw), back(encoded_ragged=rows, input_ragged_rank=n - 1, output_ragged_rank=n, **kw)
                both.same(target, [tf.shape(whole), tf.shape(rows), list(a.output_nested_splits), a.output_dense_values, list(b.output_nested_splits), b.output_dense_values])
                bad = back(encoded_ragged=whole, input_ragged_rank=n + 1, output_ragged_rank=n + 1, **kw)
                both.same(target, bad.output_dense_values)
            wrong = back(encoded_ragged=to(rt_nested_splits=[one], rt_dense_values=v, batched_input=False), input_ragged_rank=1, output_ragged_rank=1, Tvalues=tf.bool, Tsplits=tf.as_dtype(st))
            both.same(target, wrong.output_dense_values)
    both.same(target, tf.shape(to(rt_nested_splits=[p(np.array([0, 3], np.int64), None)], rt_dense_values=[1.0], batched_input=True)))  # past the values


def test_gradients_of_ragged_in_variants(target):
    """By way of RaggedTensorToVariantGradient; rows that nobody asks for are zeros."""
    p = tf1.placeholder_with_default
    to, back, grad = tf.raw_ops.RaggedTensorToVariant, tf.raw_ops.RaggedTensorFromVariant, tf.raw_ops.RaggedTensorToVariantGradient
    for st in (np.int32, np.int64):
        for v in (np.arange(5, dtype=np.float32), np.arange(10, dtype=np.float64).reshape(5, 2)):
            x, splits = p(v, None), p(np.array([0, 2, 2, 5], st), [4])
            kw = dict(Tvalues=tf.as_dtype(v.dtype), Tsplits=tf.as_dtype(st))
            for rows in (False, True):
                e = to(rt_nested_splits=[splits], rt_dense_values=x, batched_input=rows)
                y = back(encoded_ragged=e, input_ragged_rank=1 - int(rows), output_ragged_rank=1, **kw).output_dense_values
                both.same(target, tf.gradients(y * y, x))
            one = back(encoded_ragged=to(rt_nested_splits=[splits], rt_dense_values=x, batched_input=True)[2], input_ragged_rank=0, output_ragged_rank=0, **kw).output_dense_values
            both.same(target, tf.gradients(one * one, x))
            dense = to(rt_nested_splits=[], rt_dense_values=x, batched_input=True)
            both.same(target, grad(encoded_ragged_grad=dense, row_splits=splits, dense_values_shape=p(np.array(v.shape, np.int32), None), Tvalues=kw["Tvalues"]))
            whole = to(rt_nested_splits=[splits], rt_dense_values=x, batched_input=False)
            both.same(target, grad(encoded_ragged_grad=whole, row_splits=splits, dense_values_shape=[1, 2], Tvalues=kw["Tvalues"]))
    both.same(target, grad(encoded_ragged_grad=whole, row_splits=splits, dense_values_shape=p([-1], None), Tvalues=kw["Tvalues"]))
    # TensorFlow writes past the end, or reads what is not there
    none = to(rt_nested_splits=[], rt_dense_values=tf.zeros([3, 2]), batched_input=True)
    for shape, dtype in (([7], tf.float32), ([3, 2], tf.bool)):
        assert both.run(target, grad(encoded_ragged_grad=none, row_splits=splits, dense_values_shape=shape, Tvalues=dtype))[0].code == 3


def test_composite_tensors_in_variants(target):
    from tensorflow.python.ops import composite_tensor_ops as cto
    ragged = tf.ragged.constant([[1.5, 2], [3], []])
    sparse = tf.sparse.from_dense([[0, 0, 3], [1, 2, 0]])
    for v in (ragged, sparse, tf.IndexedSlices(tf.ones([2, 3]), tf.constant([1, 4]))):
        e = cto.composite_tensor_to_variants(v)
        both.same(target, tf.nest.flatten(cto.composite_tensor_from_variant(e, v._type_spec), expand_composites=True))
        through = tf.io.parse_tensor(tf.io.serialize_tensor(e), tf.variant)
        both.same(target, tf.nest.flatten(cto.composite_tensor_from_variant(through, v._type_spec), expand_composites=True))
        both.same(target, tf.nest.flatten(cto.composite_tensor_from_variant(e, tf.RaggedTensorSpec([None, None, None], tf.int32)), expand_composites=True))
        both.same(target, tf.nest.flatten(cto.composite_tensor_from_variant(e, tf.RaggedTensorSpec([None, None], tf.int32)), expand_composites=True))
        both.same(target, tf.nest.flatten(cto.composite_tensor_from_variant(e, tf.SparseTensorSpec([None, None], tf.bool)), expand_composites=True))
    x = ragged.values
    e = cto.composite_tensor_to_variants(ragged)
    both.same(target, tf.gradients(cto.composite_tensor_from_variant(e, ragged._type_spec).values * [1.0, 2.0, 3.0], x))
    to, back = tf.raw_ops.CompositeTensorVariantFromComponents, tf.raw_ops.CompositeTensorVariantToComponents
    none = to(components=[], metadata=b"")
    both.same(target, [tf.shape(none), tf.shape(to(components=[1, "a"], metadata=b""))])
    for bad in (to(components=[1], metadata=b"\x0a\x05a"), to(components=[1], metadata=b"junk")):
        both.same(target, tf.shape(bad))
    for bad in (none, tf.raw_ops.OptionalNone(), tf.raw_ops.TensorListReserve(element_shape=[1], num_elements=1, element_dtype=tf.int32)):
        both.same(target, back(encoded=bad, metadata=b"", Tcomponents=[tf.int32])[0])
