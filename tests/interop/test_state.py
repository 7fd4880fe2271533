"""Queues, accumulators and checkpoints on a cluster of ours, driven and read by the real TensorFlow."""
import os
import threading
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from test_programs import P0, P1, Thread, session


@pytest.fixture
def graph():
    with tf.Graph().as_default() as g:
        yield g


def test_one_name_many_kinds(fresh, graph):
    """A name belongs to a kind of thing: a queue, an accumulator and variables of both kinds may share one, as in TensorFlow."""
    with tf.device(P0):
        q = tf.FIFOQueue(3, tf.int32, shapes=[[]], shared_name="same")
        v = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="same")
        r = tf.raw_ops.VariableV2(dtype=tf.float32, shape=[], shared_name="same")
        acc = tf.ConditionalAccumulator(tf.float32, shape=[], shared_name="same")
        setup = [q.enqueue(7), tf.raw_ops.AssignVariableOp(resource=v, value=2.0), tf.raw_ops.Assign(ref=r, value=3.0), acc.apply_grad(4.0)]
        fetch = [q.dequeue(), tf.raw_ops.ReadVariableOp(resource=v, dtype=tf.float32), tf.identity(r), acc.take_grad(1)]
        gone = tf.raw_ops.DestroyResourceOp(resource=v, ignore_lookup_error=False)
        there = [tf.raw_ops.VarIsInitializedOp(resource=v), tf.raw_ops.IsVariableInitialized(ref=r), q.size()]
        wrong = tf.raw_ops.ReadVariableOp(resource=q.queue_ref, dtype=tf.float32)
    with session(fresh) as s:
        s.run(setup)
        assert s.run(fetch) == [7, 2.0, 3.0, 4.0]
        s.run(gone)
        assert s.run(there) == [False, True, 0]
        with pytest.raises(tf.errors.InvalidArgumentError, match="wrong type"):
            s.run(wrong)


def missing(op):
    """A step of one op on a variable that nobody has made."""
    r, one = tf.raw_ops, dict(alpha=0.1, delta=[1.0, 2.0, 3.0])
    h = r.VarHandleOp(dtype=tf.float32, shape=[3], shared_name="nobody")
    whole, at, row = [1.0, 2.0, 3.0], tf.constant([0]), tf.constant([1.0])
    return {
        "ReadVariableOp": lambda: r.ReadVariableOp(resource=h, dtype=tf.float32),
        "AssignAddVariableOp": lambda: r.AssignAddVariableOp(resource=h, value=whole),
        "AssignSubVariableOp": lambda: r.AssignSubVariableOp(resource=h, value=whole),
        "ResourceGather": lambda: r.ResourceGather(resource=h, indices=at, dtype=tf.float32),
        "ResourceGatherNd": lambda: r.ResourceGatherNd(resource=h, indices=[[0]], dtype=tf.float32),
        "ResourceScatterAdd": lambda: r.ResourceScatterAdd(resource=h, indices=at, updates=row),
        "ResourceScatterNdUpdate": lambda: r.ResourceScatterNdUpdate(ref=h, indices=[[0]], updates=row),
        "ResourceStridedSliceAssign": lambda: r.ResourceStridedSliceAssign(ref=h, begin=[0], end=[1], strides=[1], value=row),
        "ResourceApplyGradientDescent": lambda: r.ResourceApplyGradientDescent(var=h, **one),
        "ResourceApplyMomentum": lambda: r.ResourceApplyMomentum(var=h, accum=h, lr=0.1, grad=whole, momentum=0.1),
        "ResourceSparseApplyAdagrad": lambda: r.ResourceSparseApplyAdagrad(var=h, accum=h, lr=0.1, grad=row, indices=at),
        "VariableShape": lambda: r.VariableShape(input=h),
        "VarIsInitializedOp": lambda: r.VarIsInitializedOp(resource=h),
        "DisableCopyOnRead": lambda: r.DisableCopyOnRead(resource=h),
        "StatefulUniform": lambda: r.StatefulUniform(resource=r.VarHandleOp(dtype=tf.int64, shape=[3], shared_name="nobody"), algorithm=1, shape=[2], dtype=tf.float32),
    }[op]()


@pytest.mark.parametrize("op", ["ReadVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceGather", "ResourceGatherNd", "ResourceScatterAdd", "ResourceScatterNdUpdate",
                                "ResourceStridedSliceAssign", "ResourceApplyGradientDescent", "ResourceApplyMomentum", "ResourceSparseApplyAdagrad", "VariableShape", "VarIsInitializedOp",
                                "DisableCopyOnRead", "StatefulUniform"])
def test_a_variable_that_is_not_there(fresh, op):
    """The code depends on who asks: TensorFlow's."""
    if not hasattr(tf.raw_ops, op):
        pytest.skip("this TensorFlow has no " + op)
    got = []
    for target in (fresh.target("worker"), ""):
        with tf.Graph().as_default(), tf.Session(target) as s:
            try:
                got.append(s.run(missing(op)))
            except tf.errors.OpError as e:
                assert target == "" or "nobody" in e.message
                got.append(e.error_code)
    assert got[0] == got[1]


@pytest.mark.asan
def test_queue_kinds(fresh, graph):
    with tf.device(P0):
        pad = tf.PaddingFIFOQueue(10, [tf.float32], shapes=[[None, 2]])
        put = [pad.enqueue([np.full([n, 2], n, np.float32)]) for n in (1, 3)]
        padded = pad.dequeue_many(2)
        shuffle = tf.RandomShuffleQueue(20, min_after_dequeue=2, dtypes=[tf.int32], shapes=[[]], seed=3)
        fill, some, close = shuffle.enqueue_many([tf.range(8)]), shuffle.dequeue_many(6), shuffle.close()
        rest = shuffle.dequeue_up_to(5)
        first = tf.PriorityQueue(10, [tf.string], shapes=[[]])
        ranked = first.enqueue_many([np.array([5, 1, 3], np.int64), ["five", "one", "three"]])
        best = first.dequeue_many(3)
    with session(fresh) as s:
        s.run(put[0])
        s.run(put[1])
        got = s.run(padded)
        assert got.shape == (2, 3, 2) and got.sum() == 2 + 18 and (got[0, 1:] == 0).all()
        s.run(fill)
        got = list(s.run(some))
        assert len(set(got)) == 6
        s.run(close)
        got += list(s.run(rest))
        assert sorted(got) == list(range(8))
        s.run(ranked)
        assert [list(x) for x in s.run(best)] == [[1, 3, 5], [b"one", b"three", b"five"]]


def test_queue_pipeline(fresh, graph):
    """A QueueRunner fills, the step takes, the coordinator ends both: enqueues that wait are cancelled."""
    with tf.device(P1):
        q = tf.FIFOQueue(3, [tf.int64], shapes=[[]])
        n = tf.get_variable("n", shape=[], dtype=tf.int64, initializer=tf.zeros_initializer())
        up = q.enqueue(n.assign_add(1))
        take = q.dequeue_many(5)
    tf.train.add_queue_runner(tf.train.QueueRunner(q, [up]))
    with session(fresh) as s:
        s.run(tf.global_variables_initializer())
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(s, coord)
        got = [s.run(take) for _ in range(4)]
        assert sorted(np.concatenate(got)) == list(range(1, 21))
        coord.request_stop()
        coord.join(threads, stop_grace_period_secs=20)


@pytest.mark.parametrize("resource", [False, True])
def test_reads_see_ordered_updates(fresh, graph, resource):
    """A reference variable that was read before a wait is used after the update that followed it: TensorFlow gives the new value."""
    with tf.device(P0):
        v = tf.get_variable("v", initializer=tf.constant(0, tf.int64), use_resource=resource)
        q = tf.FIFOQueue(5, tf.int64, shapes=[[]])
        x = tf.placeholder(tf.int64, [])
        put = q.enqueue(x)
        with tf.control_dependencies([v.assign_add(q.dequeue())]):
            filled = tf.fill([2], v)
        with tf.control_dependencies([v.assign(q.dequeue())]):
            more = v + 1
    with session(fresh) as s:
        s.run(v.initializer)
        for fetch, feed, want in ((filled, 3, [3, 3]), (more, 50, 51)):
            waiting = Thread(s.run, fetch)
            time.sleep(0.3)
            s.run(put, {x: feed})
            assert np.array_equal(waiting.result(), want)


@pytest.mark.asan
def test_accumulators(fresh):
    def build():
        with tf.device(P0):
            dense = tf.ConditionalAccumulator(tf.float32, shape=[2], shared_name="dense")
            rows = tf.SparseConditionalAccumulator(tf.float32, shape=[10, 2], shared_name="rows", reduction_type="MEAN")
            return (dense.apply_grad([1.0, 3.0], local_step=0), dense.take_grad(2), dense.num_accumulated(),
                    rows.apply_grad([1, 4], [[1.0, 1.0], [2.0, 2.0]], local_step=0), rows.apply_grad([4], [[4.0, 6.0]], local_step=0),
                    rows.take_grad(2), dense.set_global_step(9))

    with tf.Graph().as_default(), session(fresh) as s0:
        apply0, _, count, rows0, _, _, step = build()
        with tf.Graph().as_default(), session(fresh, index=1) as s1:
            _, take, _, _, rows1, take_rows, _ = build()
            waiting, waiting_rows = Thread(s1.run, take), Thread(s1.run, take_rows)
            time.sleep(0.2)
            s0.run(apply0)
            assert s0.run(count) == 1
            s0.run(apply0)
            assert list(waiting.result()) == [1, 3]
            s0.run(rows0)
            s1.run(rows1)
            got = waiting_rows.result()
            assert list(got.indices) == [1, 4] and got.values.tolist() == [[1, 1], [3, 4]] and list(got.shape) == [10, 2]
        s0.run(apply0)  # stale: the step is 1 by now
        s0.run(step)
        assert s0.run(count) == 0


@pytest.mark.parametrize("worker_kind", ["trn", "tf"])
def test_sync_replicas(cluster, tmp_path, worker_kind):
    """Two workers in step, with a dense and a sparse variable; tokens and accumulators are on the ps."""
    c = cluster(ps=1, workers=2, worker_kind=worker_kind)
    steps = 12
    start = threading.Barrier(2)

    def worker(index):
        with tf.Graph().as_default():
            with tf.device(tf.train.replica_device_setter(cluster=c.spec, worker_device=f"/job:worker/task:{index}")):
                step = tf.train.get_or_create_global_step()
                w = tf.get_variable("w", [3], initializer=tf.ones_initializer())
                e = tf.get_variable("e", [6, 2], initializer=tf.ones_initializer())
                loss = tf.reduce_sum(w * w) + tf.reduce_sum(tf.gather(e, [index, 3]))
                opt = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(0.125), replicas_to_aggregate=2, total_num_replicas=2)
                train = opt.minimize(loss, global_step=step)
                saver = tf.train.Saver()
            with session(c, index=index, device_filters=["/job:ps", f"/job:worker/task:{index}"]) as s:
                coord = tf.train.Coordinator()
                if index == 0:
                    s.run(tf.global_variables_initializer())
                    s.run(opt.chief_init_op)
                    opt.get_chief_queue_runner().create_threads(s, coord, daemon=True, start=True)
                    s.run(opt.get_init_tokens_op())
                start.wait(60)
                s.run(opt.local_step_init_op)
                try:
                    # Alone a worker gives both gradients of a step, and would give all of them before a slow one is there: it goes on until that one's are in.
                    while s.run(step) < steps or s.run(e)[:2, 0].max() == 1:
                        s.run(train, options=tf.RunOptions(timeout_in_ms=4000))
                except tf.errors.DeadlineExceededError:
                    assert s.run(step) >= steps  # the other one needed no more of us
                start.wait(60)
                coord.request_stop()
                return saver.save(s, str(tmp_path / "sync")) if index == 0 else None

    threads = [Thread(worker, i) for i in range(2)]
    threads[1].result(120)
    r = tf.train.load_checkpoint(threads[0].result(120))
    n = r.get_tensor("global_step")
    assert n >= steps
    assert np.allclose(r.get_tensor("w"), 0.75 ** n)
    e = r.get_tensor("e")[:, 0]
    # A step has both gradients, or twice that of the quicker worker; a row that both have is averaged.
    assert np.allclose(e[[2, 4, 5]], 1) and np.allclose(e[3], 1 - n / 8) and e[0] < 1 and e[1] < 1


# ---- checkpoints

def model(local=False):
    with tf.device(None if local else tf.train.replica_device_setter(ps_tasks=2)):
        a = tf.get_variable("a", [5, 3], initializer=tf.random_uniform_initializer(seed=1))
        b = tf.get_variable("b", [4], dtype=tf.float64, initializer=tf.ones_initializer(), use_resource=True)
        p = tf.get_variable("p", [11, 2], initializer=tf.random_uniform_initializer(seed=2), partitioner=tf.fixed_size_partitioner(3))
        s = tf.get_variable("s", initializer=tf.constant(["one", "", "three" * 100]))
        n = tf.get_variable("n", initializer=np.int64(7), use_resource=True)
        flags = tf.get_variable("flags", initializer=np.array([True, False]))
    return [a, b, tf.convert_to_tensor(p), s, n, flags]


def same(x, y):
    return len(x) == len(y) and all(np.array_equal(a, b) for a, b in zip(x, y))


@pytest.mark.asan
@pytest.mark.parametrize("sharded", [False, True])
def test_checkpoint_there_and_back(fresh, graph, tmp_path, sharded):
    values = model()
    saver = tf.train.Saver(sharded=sharded, max_to_keep=2)
    with session(fresh) as s:
        s.run(tf.global_variables_initializer())
        before = s.run(values)
        ours = saver.save(s, str(tmp_path / "ours"), global_step=1)
    assert not [f for f in os.listdir(tmp_path) if "temp" in f]
    tf.Session.reset(fresh.target())
    with tf.Graph().as_default(), tf.Session() as s:  # TensorFlow, in this process
        local = model(local=True)
        local_saver = tf.train.Saver()
        local_saver.restore(s, ours)
        assert same(s.run(local), before)
        s.run([v.assign(v + 1) for v in tf.global_variables() if v.dtype.base_dtype.is_floating])
        after = s.run(local)
        theirs = local_saver.save(s, str(tmp_path / "theirs"))
    with session(fresh) as s:
        with pytest.raises(tf.errors.FailedPreconditionError):
            s.run(values)
        saver.restore(s, theirs)
        assert same(s.run(values), after)
        again = saver.save(s, str(tmp_path / "theirs"))  # over the old one
        saver.restore(s, again)
        assert same(s.run(values), after)


def test_checkpoint_errors(fresh, graph, tmp_path):
    with tf.device(P0):
        v = tf.get_variable("v", [3], initializer=tf.zeros_initializer())
    with session(fresh) as s:
        s.run(v.initializer)
        path = tf.train.Saver([v]).save(s, str(tmp_path / "c"))
        with tf.device(P0):
            other = tf.get_variable("other", [3], initializer=tf.zeros_initializer())
        with pytest.raises(tf.errors.NotFoundError, match="other"):
            tf.train.Saver([v, other]).restore(s, path)
        with tf.device(P0):
            whole = tf.get_variable("whole", [3], dtype=tf.int32, initializer=tf.zeros_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected dtype int32 does not equal original dtype float"):
            tf.train.Saver({"v": whole}).restore(s, path)
        data = path + ".data-00000-of-00001"
        b = bytearray(open(data, "rb").read())
        b[0] ^= 1
        open(data, "wb").write(b)
        with pytest.raises(tf.errors.DataLossError, match="Checksum does not match"):
            tf.train.Saver([v]).restore(s, path)


def test_version_1(fresh, graph, tmp_path):
    with tf.device(P1):
        v = tf.get_variable("v", initializer=np.arange(6, dtype=np.float32))
    saver = tf.train.Saver(write_version=tf.train.SaverDef.V1)
    with session(fresh) as s:
        s.run(v.initializer)
        path = saver.save(s, str(tmp_path / "old"))
        s.run(v.assign(v * 0))
        saver.restore(s, path)
        assert list(s.run(v)) == list(range(6))
    with tf.Graph().as_default(), tf.Session() as s:
        v = tf.get_variable("v", [6])
        tf.train.Saver(write_version=tf.train.SaverDef.V1).restore(s, path)
        assert list(s.run(v)) == list(range(6))
