"""Ops go where they were asked to; graphs that are cut in the middle of a loop or conditional compute the same, whoever the tasks are."""
import pytest
import tensorflow.compat.v1 as tf

from conftest import tensorflow_1

COMPARES = False

W, P0, P1 = "/job:worker/task:0", "/job:ps/task:0", "/job:ps/task:1"
MIXES = [("trn", "trn"), ("tf", "trn"), ("trn", "tf")]  # ps, worker (which is the master)


def session(c, **config):
    return tf.Session(c.target("worker"), config=tf.ConfigProto(operation_timeout_in_ms=30000, **config))


def loop():
    def body(i, a):
        with tf.device(P0):
            b = a + i
        with tf.device(P1):
            d = b * 2.0
        with tf.device(W):
            return i + 1, d - a

    return tf.while_loop(lambda i, a: i < 5.0, body, [tf.constant(0.0), tf.constant(1.0)])[1], 21.0


def nested():
    def inner(j, a):
        with tf.device(P1):
            return j + 1, a + j

    def outer(i, a):
        with tf.device(P0):
            x = a + 1
        return i + 1, tf.while_loop(lambda j, _: j < i, inner, [tf.constant(0.0), x])[1]

    return tf.while_loop(lambda i, a: i < 4.0, outer, [tf.constant(0.0), tf.constant(1.0)])[1], 9.0


def loop_in_branch(taken):
    x = tf.constant(4.0) if taken else tf.constant(-4.0)

    def yes():
        with tf.device(P0):
            return tf.while_loop(lambda i: i < 10.0, lambda i: i + 3.0, [x])

    def no():
        with tf.device(P1):
            return x - 1.0

    return tf.cond(x > 0.0, yes, no), 10.0 if taken else -5.0


def variable_in_loop():
    with tf.device(P1):
        v = tf.get_variable("v", initializer=3.0, use_resource=True)
    return tf.while_loop(lambda i, a: i < 3.0, lambda i, a: (i + 1, a + v.read_value()), [0.0, 0.0])[1], 9.0


PROGRAMS = [loop, nested, lambda: loop_in_branch(True), lambda: loop_in_branch(False), variable_in_loop]


@pytest.mark.asan
@pytest.mark.parametrize("ps_kind,worker_kind", MIXES)
def test_split_control_flow(cluster, ps_kind, worker_kind):
    c = cluster(ps=2, ps_kind=ps_kind, worker_kind=worker_kind)
    for v2 in (False,) if tensorflow_1() and worker_kind == "tf" else (False, True):  # TensorFlow 1's own placer refuses a While over several tasks
        (tf.enable_control_flow_v2 if v2 else tf.disable_control_flow_v2)()
        try:
            for program in PROGRAMS:
                with tf.Graph().as_default(), tf.device(W):
                    fetch, want = program()
                    init = tf.global_variables_initializer()
                    with session(c) as s:
                        s.run(init)
                        assert [float(s.run(fetch)) for _ in range(2)] == [want, want]
        finally:
            tf.disable_control_flow_v2()


@pytest.mark.parametrize("ps_kind", ["trn", "tf"])
def test_ref_read_after_write(cluster, ps_kind):
    """A reference that another task reads gives the value that it has once everything that the reader waits for is done."""
    c = cluster(ps=2, ps_kind=ps_kind)
    with tf.device(P0):
        v = tf.get_variable("v", initializer=1.0, use_resource=False)
        up = v.assign_add(2.0)
    with tf.device(W):
        with tf.control_dependencies([up]):
            there = tf.no_op()
        with tf.control_dependencies([there]):
            read = tf.identity(v._ref())
    with session(c) as s:
        s.run(v.initializer)
        for k in range(1, 20):
            assert s.run(read) == 1.0 + 2.0 * k


def devices(c, fetch, feed, **config):
    """Node name → device, as the step's statistics tell it."""
    with session(c, **config) as s:
        meta = tf.RunMetadata()
        s.run(fetch, feed, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=meta)
    return {n.node_name: d.device for d in meta.step_stats.dev_stats for n in d.node_stats}


def test_names(cluster):
    c = cluster(ps=2, workers=2)
    cases = {"": "/job:worker/replica:0/task:0", "/job:ps": "/job:ps/replica:0/task:0", "/job:ps/task:1": "/job:ps/replica:0/task:1",
             "/job:worker/task:1/cpu:0": "/job:worker/replica:0/task:1"}
    x = tf.placeholder(tf.float32, [2])  # fed, so that nothing is folded away
    nodes = {}
    for want, task in cases.items():
        with tf.device(want):
            nodes[tf.add(x, 1.0).op] = task
    got = devices(c, [n.outputs[0] for n in nodes], {x: [1.0, 2.0]})
    for n, task in nodes.items():
        assert got[n.name].startswith(task + "/"), n.name


def test_errors(cluster):
    c = cluster(ps=2)
    with tf.device("/job:foo/task:9"):
        far = tf.constant(1.0, name="far")
    with tf.device("/gpu:0"):
        gpu = tf.constant(2.0, name="on_gpu")
    fine = tf.constant(3.0)
    for soft in (False, True):
        with session(c, allow_soft_placement=soft) as s, pytest.raises(tf.errors.InvalidArgumentError, match="far"):
            s.run(fine)  # as TensorFlow: the whole graph is placed, unless only what is needed shall be
        with session(c, allow_soft_placement=soft, graph_options=tf.GraphOptions(place_pruned_graph=True)) as s:
            with pytest.raises(tf.errors.InvalidArgumentError) as e:
                s.run(far)
            assert "was explicitly assigned to /job:foo/task:9 but available devices are [ /job:ps/replica:0/task:0/device:CPU:0, " in str(e.value)
            assert e.value.op.name == "far"
            if soft:
                assert s.run(gpu) == 2.0
            else:
                with pytest.raises(tf.errors.InvalidArgumentError, match="explicitly assigned to /device:GPU:0"):
                    s.run(gpu)
            assert s.run(fine) == 3.0  # what is not needed harms nobody
