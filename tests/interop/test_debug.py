"""tfdbg: tensors that TensorFlow's debugger watches are dumped by the tasks that have them, and read back by TensorFlow's reader of dumps."""
import os
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.debug.lib import debug_data, debug_utils
from tensorflow.python.debug.wrappers import dumping_wrapper, framework, hooks

from conftest import tensorflow_1
from test_endurance import metrics

pytestmark = pytest.mark.skipif(tensorflow_1(), reason="its reader of dumps is another one")
PS, WORKER = "/job:ps/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:0/device:CPU:0"
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def program():
    """Ref and resource variables on the ps, on the worker what is fused, folded and merged when nobody watches, a loop, a branch, strings."""
    with tf.device("/job:ps/task:0"):
        v = tf.get_variable("v", initializer=np.arange(6, dtype=np.float32).reshape(2, 3), use_resource=False)
        r = tf.get_variable("r", initializer=np.ones([3], np.float32), use_resource=True)
    with tf.device("/job:worker/task:0"):
        x = tf.placeholder(tf.float32, [2, 3], name="x")
        product = tf.matmul(x, tf.transpose(v), name="product")
        out = tf.nn.relu(tf.nn.bias_add(product, r[:2], name="biased"), name="out")
        same = tf.identity(out, name="same")
        folded = tf.add(tf.constant(2.0), tf.constant(3.0), name="folded")
        bad = tf.log(same - 4.0, name="bad")
        words = tf.constant([b"a", b"bc"], name="words")
        loop = tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, tf.multiply(a, folded, name="times")), [0, 1.0], name="w")[1]
        branch = tf.cond(tf.reduce_sum(out) > 0, lambda: tf.add(out, 1.0, name="yes"), lambda: tf.add(out, 2.0, name="no"))
        loss = tf.reduce_sum(branch, name="loss")
    with tf.device("/job:ps/task:0"), tf.control_dependencies([loss, bad]):
        up = tf.assign_add(v, tf.ones_like(v), name="up")
        up_r = tf.raw_ops.AssignAddVariableOp(resource=r.handle, value=tf.ones([3]))
    return x, [bad, words, loop, loss, up, up_r]


def unoptimised():
    """A TensorFlow server that neither folds nor merges, so that it, too, dumps every node."""
    c = tf.ConfigProto(operation_timeout_in_ms=60000)
    c.graph_options.rewrite_options.disable_meta_optimizer = True
    c.graph_options.optimizer_options.opt_level = -1
    return c


def watch_all(*ops):
    return lambda fetches, feeds: framework.WatchOptions(debug_ops=list(ops), tolerate_debug_op_creation_failures=True)


def runs(root):
    return [debug_data.DebugDumpDir(os.path.join(root, d)) for d in sorted(os.listdir(root), key=lambda d: int(d.rsplit("_", 1)[1]))]


def read(dump):
    """(device, watch key) → values; edges between tasks have names of their own on every kind of server."""
    data = {}
    for t in dump.dumped_tensor_data:
        if "_recv" not in t.node_name and "_arg_" not in t.node_name and "__cf__" not in t.node_name and not t.node_name.rsplit("_", 1)[-1].startswith("S"):
            data.setdefault((t.device_name, t.watch_key), []).append(t.get_tensor())
    return data


def dumps_of(c, root, steps=2):
    tf.reset_default_graph()
    x, fetches = program()
    with tf.Session(c.target("worker"), config=unoptimised()) as s:
        s.run(tf.global_variables_initializer())
        w = dumping_wrapper.DumpingDebugWrapperSession(s, str(root), watch_fn=watch_all("DebugIdentity", "DebugNumericSummary", "DebugNanCount"), pass_through_operrors=True)
        results = [w.run(fetches, {x: X}) for _ in range(steps)]
    return results, runs(str(root))


def same(ours, theirs):
    if isinstance(ours, debug_data.InconvertibleTensorProto):
        return isinstance(theirs, debug_data.InconvertibleTensorProto) and ours.initialized == theirs.initialized
    if ours.dtype.kind in "OS":
        return ours.tolist() == theirs.tolist()
    return ours.shape == theirs.shape and ours.dtype == theirs.dtype and np.allclose(ours, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.asan
def test_as_tensorflow_dumps(cluster, tmp_path):
    """Every tensor of two steps, on both tasks, is what TensorFlow's own servers dump for the same program."""
    ours, our_dumps = dumps_of(cluster(), tmp_path / "ours")
    theirs, their_dumps = dumps_of(cluster(ps_kind="tf", worker_kind="tf"), tmp_path / "theirs")
    for a, b in zip(ours, theirs):
        for p, q in zip(a, b):
            assert p is None and q is None or same(np.asarray(p), np.asarray(q))
    assert len(our_dumps) == len(their_dumps) == 2
    for a, b in zip(our_dumps, their_dumps):
        assert sorted(a.devices()) == sorted(b.devices()) == [PS, WORKER]
        mine, real = read(a), read(b)
        missing = {k for k in real if k not in mine}
        assert not missing
        assert {(WORKER, f"{n}:0:DebugIdentity") for n in ("product", "biased", "out", "same", "folded", "bad", "words", "loss")} < set(mine)
        assert (PS, "v:0:DebugIdentity") in mine and (PS, "up:0:DebugIdentity") in mine
        for k in real:
            assert len(mine[k]) == len(real[k]), k
            for p, q in zip(mine[k], real[k]):
                assert same(p, q), (k, p, q)
        assert len(mine[WORKER, "w/times:0:DebugIdentity"]) == 3
        found, expected = ([d.node_name for d in x.find(debug_data.has_inf_or_nan) if d.debug_op == "DebugIdentity"] for x in (a, b))
        assert found == expected == ["bad"]
        assert a.node_op_type("out") == b.node_op_type("out") == "Relu"
        assert a.transitive_inputs("loss", device_name=WORKER)
    for i, d in enumerate(our_dumps):
        m, real = d.core_metadata, their_dumps[i].core_metadata
        assert m.session_run_index == i and m.executor_step_index == real.executor_step_index == 0
        assert (m.global_step, m.input_names, m.output_names, m.target_nodes) == (real.global_step, real.input_names, real.output_names, real.target_nodes)


@pytest.mark.parametrize("ps, worker", [("trn", "tf"), ("tf", "trn")])
def test_mixed(cluster, tmp_path, ps, worker):
    """Whoever the master is: RegisterGraph brings the watches to each task."""
    _, dumps = dumps_of(cluster(ps_kind=ps, worker_kind=worker), tmp_path / "d", steps=1)
    data = read(dumps[0])
    assert np.array_equal(data[PS, "v:0:DebugIdentity"][0], np.arange(6, dtype=np.float32).reshape(2, 3))
    assert data[PS, "v:0:DebugNumericSummary"][0][1] == 6
    assert data[WORKER, "folded:0:DebugIdentity"][0] == 5


@pytest.mark.parametrize("ps", ["trn", "tf"])
def test_loop_over_tasks(cluster, tmp_path, ps):
    """A loop with parts on two tasks, everything in it watched on both."""
    c = cluster(ps_kind=ps)

    def body(i, a):
        with tf.device("/job:ps/task:0"):
            b = tf.add(a, i, name="b")
        with tf.device("/job:worker/task:0"):
            return i + 1, tf.multiply(b, 2.0, name="d")

    with tf.device("/job:worker/task:0"):
        w = tf.while_loop(lambda i, a: i < 4, body, [tf.constant(0.0), tf.constant(1.0)], name="w")[1]
    with tf.Session(c.target("worker"), config=unoptimised()) as s:
        assert s.run(w) == 38
        wrapped = dumping_wrapper.DumpingDebugWrapperSession(s, str(tmp_path / "d"), watch_fn=watch_all("DebugIdentity"), pass_through_operrors=True)
        assert wrapped.run(w) == 38
    data = read(runs(str(tmp_path / "d"))[0])
    assert data[PS, "w/b:0:DebugIdentity"] == [1, 3, 8, 19] and data[WORKER, "w/d:0:DebugIdentity"] == [2, 6, 16, 38]


def test_hook(cluster, tmp_path):
    """DumpingDebugHook on a MonitoredSession: each step its folder, only what the filter lets through, and values that follow the training."""
    c = cluster()
    with tf.device("/job:ps/task:0"):
        step = tf.train.get_or_create_global_step()
        w = tf.get_variable("w", initializer=np.ones([3, 1], np.float32), use_resource=True)
    with tf.device("/job:worker/task:0"):
        loss = tf.reduce_mean(tf.square(tf.matmul(tf.constant(X), w, name="guess") - 3.0), name="loss")
    train = tf.train.GradientDescentOptimizer(0.05).minimize(loss, global_step=step)
    filtered = framework.WatchOptions(debug_ops=["DebugIdentity", "DebugNumericSummary(lower_bound=-1;upper_bound=1)"], node_name_regex_allowlist=r"(loss$|guess$|w$|gradients/.*MatMul.*)",
                                      tolerate_debug_op_creation_failures=True)
    hook = hooks.DumpingDebugHook(str(tmp_path / "d"), watch_fn=lambda f, d: filtered)
    losses = []
    with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(master=c.target("worker")), hooks=[hook]) as s:
        for _ in range(12): # more than the master keeps graphs of
            losses.append(s.run([loss, train])[0])
    assert losses[-1] < losses[0]
    dumps = runs(str(tmp_path / "d"))
    dumped = [d for d in dumps if d.size]
    assert len(dumped) == 12
    for d, expected in zip(dumped, losses):
        assert d.get_tensors("loss", 0, "DebugIdentity") == [expected]
        names = {t.node_name for t in d.dumped_tensor_data}
        assert "w" in names and "guess" in names and not any("Mean" in n for n in names)
        guess = d.get_tensors("guess", 0, "DebugIdentity")[0].astype(np.float64)
        s = d.get_tensors("guess", 0, "DebugNumericSummary")[0]
        assert s[:3].tolist() == [1, 2, 0] and s[3] == (guess <= -1).sum() and s[7] == (guess >= 1).sum()
        assert np.allclose(s[8:12], [guess.min(), guess.max(), guess.mean(), guess.var()]) and s[12:].tolist() == [1, 2, 2, 1]


def options(url, *watches, ops=("DebugIdentity",), **more):
    o = tf.RunOptions()
    for node, slot in watches:
        o.debug_options.debug_tensor_watch_opts.add(node_name=node, output_slot=slot, debug_ops=ops, debug_urls=[url], **more)
    return o


def session(c):
    return tf.Session(c.target("worker"), config=tf.ConfigProto(operation_timeout_in_ms=30000))


def small():
    with tf.device("/job:ps/task:0"):
        a = tf.constant([1.0, np.nan, -np.inf], name="a")
        return tf.split(tf.identity(a * 2.0, name="b"), 3, name="parts")


def files(root):
    return sorted(f for _, _, names in os.walk(root) for f in names)


@pytest.mark.asan
def test_watches_that_do_not_apply(cluster, tmp_path):
    """Absent nodes and slots are passed over, a watch without ops or URLs is none; a step without watches afterwards dumps nothing."""
    c, parts = cluster(), small()
    url = f"file://{tmp_path}/d"
    with session(c) as s:
        assert s.run(parts[0], options=options(url, ("nobody", 0), ("b", 7), ("parts", 1))) == [2]
        def dumps():
            return [f for f in files(f"{tmp_path}/d") if not f.startswith("_tfdbg_")]

        before = dumps()
        assert len(before) == 1 and before[0].startswith("parts_1_DebugIdentity_")
        assert s.run(parts[0]) == [2]
        assert s.run(parts[0], options=options(url, ("b", 0), ops=())) == [2]
        o = options(url, ("b", 0))
        del o.debug_options.debug_tensor_watch_opts[0].debug_urls[:]
        assert s.run(parts[0], options=o) == [2]
        assert s.run(parts[0], options=options("grpc://localhost:1", ("nobody", 0))) == [2]
        assert dumps() == before
    dump = debug_data.DebugDumpDir(f"{tmp_path}/d")
    assert np.isnan(dump.get_tensors("parts", 1, "DebugIdentity")[0])
    assert [m.output_names for m in dump.core_metadata] == [["parts:0"]] * 2


def test_wildcard(cluster, tmp_path):
    """"*" besides a watch by name: everything that the step's graph has."""
    c, parts = cluster(), small()
    with session(c) as s:
        s.run(parts[2], options=options(f"file://{tmp_path}/d", ("b", 0), ("*", -1)))
        with pytest.raises(tf.errors.FailedPreconditionError, match="\"\\*\" has output_slot 0"):
            s.run(parts[2], options=options(f"file://{tmp_path}/e", ("b", 0), ("*", 0)))
        with pytest.raises(tf.errors.FailedPreconditionError, match="node b has no output -1"):
            s.run(parts[2], options=options(f"file://{tmp_path}/e", ("b", -1)))
    dump = debug_data.DebugDumpDir(f"{tmp_path}/d")
    assert {"a", "b", "parts", "mul/y"} <= {d.node_name for d in dump.dumped_tensor_data}


@pytest.mark.asan
def test_refused(cluster, tmp_path):
    """What cannot be done is said, with the watch's name; afterwards the session goes on."""
    (tmp_path / "ok").mkdir()
    c, parts = cluster(args=(f"--allow-path={tmp_path}/ok",)), small()
    with tf.device("/job:ps/task:0"):
        words = tf.constant([b"x"], name="words")
    ok = f"file://{tmp_path}/ok/d"
    with session(c) as s:
        with pytest.raises(tf.errors.UnimplementedError, match="watch of b:0.*grpc://localhost:6064"):
            s.run(parts[0], options=options("grpc://localhost:6064", ("b", 0)))
        with pytest.raises(tf.errors.PermissionDeniedError, match="allow-path"):
            s.run(parts[0], options=options(f"file://{tmp_path}/secret", ("b", 0)))
        with pytest.raises(tf.errors.PermissionDeniedError, match="allow-path"):
            s.run(parts[0], options=options(f"file://{tmp_path}/ok/../secret", ("b", 0)))
        with pytest.raises(tf.errors.FailedPreconditionError, match="DebugNanCount cannot watch tensor words:0"):
            s.run(words, options=options(ok, ("words", 0), ops=("DebugIdentity", "DebugNanCount")))
        with pytest.raises(tf.errors.FailedPreconditionError, match="no debug op Const"):
            s.run(words, options=options(ok, ("words", 0), ops=("Const",)))
        for text, why in (("DebugNumericSummary(foo=1;bar=2)", r"2 attrs are not the debug op's.*foo, bar"), ("DebugNumericSummary(lower_bound=low)", "lower_bound"), ("(x)", "is not of the form Op or"),
                          ("DebugNumericSummary(lower_bound)", "the attrs of the debug op"), ("DebugNumericSummary(lower_bound=1;lower_bound=2)", "has two values")):
            with pytest.raises(tf.errors.FailedPreconditionError, match=why):
                s.run(parts[0], options=options(ok, ("b", 0), ops=(text,)))
        with pytest.raises(tf.errors.PermissionDeniedError, match="allow-path"): # what the system is told to open, too
            s.run(parts[0], options=options(f"file://file://{tmp_path}/secret", ("b", 0)))
        for own in (dict(device_name=PS, tensor_name="../../../secret/x:0"), dict(device_name="../../secret", tensor_name="../../x:0")):
            own = tf.raw_ops.DebugIdentity(input=parts[0], debug_urls=[f"{ok}/new"], **own)
            with pytest.raises(tf.errors.PermissionDeniedError, match="allow-path"):
                s.run(own)
        assert not os.path.exists(tmp_path / "secret")
        assert s.run(words, options=options(ok, ("words", 0), ops=("DebugIdentity", "DebugNanCount"), tolerate_debug_op_creation_failures=True)) == [b"x"]
        assert [f.rsplit("_", 1)[0] for f in files(f"{tmp_path}/ok") if "Debug" in f] == ["words_0_DebugIdentity"]
        assert s.run(parts[0]) == [2]


def test_muted_and_failing(cluster, tmp_path):
    """mute_if_healthy; a step that fails leaves the dumps of what came before."""
    c, parts = cluster(), small()
    with tf.device("/job:ps/task:0"):
        checked = tf.check_numerics(parts[1], "not that", name="checked")
    with session(c) as s:
        with pytest.raises(tf.errors.InvalidArgumentError, match="not that"):
            s.run(checked, options=options(f"file://{tmp_path}/d", ("parts", 0), ("parts", 1), ("checked", 0), ops=("DebugNumericSummary(mute_if_healthy=true)",)))
    assert [f.rsplit("_", 1)[0] for f in files(f"{tmp_path}/d") if "Debug" in f] == ["parts_1_DebugNumericSummary"]


def test_uninitialised(cluster, tmp_path):
    """A ref variable before it has a value: its dump says so."""
    c = cluster()
    with tf.device("/job:ps/task:0"):
        v = tf.get_variable("v", initializer=np.zeros([2, 3], np.float32), use_resource=False)
        word = tf.get_variable("word", initializer=b"x", use_resource=False)
    with session(c) as s:
        s.run([v.initializer, word.initializer], options=options(f"file://{tmp_path}/d", ("v", 0), ("word", 0), ops=("DebugIdentity", "DebugNumericSummary"), tolerate_debug_op_creation_failures=True))
    dump = debug_data.DebugDumpDir(f"{tmp_path}/d")
    for name in ("v", "word"):
        t = dump.get_tensors(name, 0, "DebugIdentity")[0]
        assert isinstance(t, debug_data.InconvertibleTensorProto) and not t.initialized
    s = dump.get_tensors("v", 0, "DebugNumericSummary")[0]
    assert s[:8].tolist() == [0] * 8 and s[12:].tolist() == [1, 2, 2, 3]


def test_disk_limit(cluster, tmp_path, monkeypatch):
    """TFDBG_DISK_BYTES_LIMIT of the task; reset_disk_byte_usage says that the files are gone."""
    monkeypatch.setenv("TFDBG_DISK_BYTES_LIMIT", "100")
    c = cluster()
    with tf.device("/job:ps/task:0"):
        y = tf.identity(tf.range(8), name="y") # 32 bytes
    with session(c) as s:
        o = options(f"file://{tmp_path}/d", ("y", 0))
        for _ in range(3):
            s.run(y, options=o)
        with pytest.raises((tf.errors.ResourceExhaustedError, ValueError)) as e: # the client, too, stumbles over the debug node's name
            s.run(y, options=o)
        assert "TFDBG_DISK_BYTES_LIMIT" in str(e.value) + str(e.value.__context__)
        fresh = options(f"file://{tmp_path}/e", ("y", 0))
        fresh.debug_options.reset_disk_byte_usage = True
        s.run(y, options=fresh)
        assert len([f for f in files(tmp_path) if f.startswith("y_0")]) == 4


def test_callable_and_metadata(cluster, tmp_path):
    """Callables dump as steps do; RunMetadata's graphs have the debug nodes."""
    c, parts = cluster(), small()
    with session(c) as s:
        o = options(f"file://{tmp_path}/d", ("b", 0))
        made = s._make_callable_from_options(config_pb2.CallableOptions(fetch=[parts[0].name], run_options=o))
        assert made()[0] == [2] and made()[0] == [2]
        o.output_partition_graphs = True
        m = tf.RunMetadata()
        s.run(parts[0], options=o, run_metadata=m)
    dump = debug_data.DebugDumpDir(f"{tmp_path}/d", partition_graphs=m.partition_graphs)
    assert len(dump.get_tensors("b", 0, "DebugIdentity")) == 3
    assert {"__copy_b_0", "__dbg_b:0_0_DebugIdentity"} <= {n.name for g in m.partition_graphs for n in g.node}
    assert [x.executor_step_index for x in sorted(dump.core_metadata, key=lambda x: x.session_run_index)] == [0, 1, 0]


def test_graphs_are_forgotten(cluster, tmp_path):
    """A debugger's steps have new folders, and so other graphs, each time: tasks keep the last few of them, and none of steps that came to nothing."""
    c, parts = cluster(), small()
    with tf.device("/job:worker/task:0"):
        mine = tf.negative(parts[0], name="mine")
    ps = next(t for t in c.tasks if t.job == "ps")

    def settles(most):
        end = time.monotonic() + 10
        while metrics(ps.address)["registered_graphs"] > most: # nobody waits for goodbyes
            assert time.monotonic() < end, metrics(ps.address)["registered_graphs"]
            time.sleep(0.1)

    with session(c) as s:
        assert s.run(mine) == [-2]
        for i in range(5):
            with pytest.raises(tf.errors.FailedPreconditionError, match="no debug op Neg"):
                s.run(mine, options=options(f"file://{tmp_path}/bad", ("mine", 0), ops=("Neg",)))
        settles(1)
        for i in range(20):
            assert s.run(mine, options=options(f"file://{tmp_path}/{i}", ("b", 0), ("mine", 0))) == [-2]
        settles(1 + 8)
        assert s.run(mine) == [-2]
    assert len([f for f in files(tmp_path) if f.startswith("mine_0_DebugIdentity")]) == 20


def test_one_folder_many_times(cluster, tmp_path):
    """Each file finds its name at once, however many URLs lead to the same folder."""
    c = cluster()
    with tf.device("/job:ps/task:0"):
        many = tf.raw_ops.DebugIdentity(input=tf.constant(1.0), device_name=PS, tensor_name="x:0", debug_urls=[f"file://{tmp_path}/d"] * 200)
    with session(c) as s:
        s.run(many)
    found = files(f"{tmp_path}/d")
    assert len(found) == 200 and not any("-" in f for f in found)


def test_graphs_that_hold_the_ops(cluster, tmp_path):
    """As nodes of a client's own graph."""
    c = cluster()
    with tf.device("/job:ps/task:0"):
        x = tf.raw_ops.Copy(input=tf.constant([1.0, np.nan]), tensor_name="x:0", debug_ops_spec=[f"DebugIdentity;file://{tmp_path}/d;0"])
        same = tf.raw_ops.DebugIdentity(input=tf.raw_ops.CopyHost(input=x), device_name=PS, tensor_name="x:0", debug_urls=[f"file://{tmp_path}/d"])
        v3 = tf.raw_ops.DebugIdentityV3(input=x, device_name=PS, tensor_name="x:0", io_of_node="scope/n", is_input=True, io_index=1, debug_urls=[f"file://{tmp_path}/d"])
        count = tf.raw_ops.DebugNanCount(input=x, device_name=PS, tensor_name="x", debug_urls=[f"file://{tmp_path}/d"])
        nameless = tf.raw_ops.DebugNanCount(input=x)
        gated = tf.raw_ops.DebugIdentity(input=x, tensor_name="x:0", gated_grpc=True)
        far = tf.raw_ops.DebugIdentity(input=x, tensor_name="x:0", debug_urls=["grpc://localhost:1"])
        odd = tf.raw_ops.DebugIdentity(input=x, tensor_name="x:0", debug_urls=["gopher://x"])
        ref = tf.get_variable("ref", initializer=2.0, use_resource=False)
        seen = tf.assign_add(tf.raw_ops.DebugGradientRefIdentity(input=ref.op.outputs[0]), 1.0)
    with session(c) as s:
        s.run(ref.initializer)
        assert s.run(seen) == 3 and s.run(ref) == 3
        a, b, n, g = s.run([same, v3, count, gated])
        assert np.array_equal(a, [1, np.nan], equal_nan=True) and np.array_equal(b, [1, np.nan], equal_nan=True) and n.tolist() == [1] and g.shape == (0,)
        for t, error in ((nameless, tf.errors.InvalidArgumentError), (far, tf.errors.UnimplementedError), (odd, tf.errors.UnavailableError)):
            with pytest.raises(error):
                s.run(t)
    found = [os.path.relpath(os.path.join(p, f), tmp_path / "d") for p, _, names in os.walk(tmp_path / "d") for f in names]
    assert sorted(f.split("/")[0].split("_")[-1] if "step-" not in f else f.split("/")[2].rsplit("_", 1)[0] for f in found) == sorted(["0", "0", "scope-n:in:1"])


def test_unwatched_steps_stay_fused(cluster, tmp_path):
    """The executors are kept apart: after watched steps the same step runs as before, and as often as one likes."""
    c = cluster()
    x, fetches = program()
    with session(c) as s:
        s.run(tf.global_variables_initializer())
        plain = tf.RunOptions(output_partition_graphs=True)
        m = [tf.RunMetadata() for _ in range(2)]
        s.run(fetches[3], {x: X}, options=plain, run_metadata=m[0])
        s.run(fetches[3], {x: X}, options=options(f"file://{tmp_path}/d", ("biased", 0), ("product", 0)))
        s.run(fetches[3], {x: X}, options=plain, run_metadata=m[1])
        ops = [sorted((n.name, n.op) for g in md.partition_graphs for n in g.node) for md in m]
        assert ops[0] == ops[1] and not any(op.startswith("Debug") for _, op in ops[1])
        start = time.monotonic()
        for _ in range(50):
            s.run(fetches[3], {x: X})
        assert time.monotonic() - start < 30
    dump = debug_data.DebugDumpDir(f"{tmp_path}/d")
    assert dump.get_tensors("product", 0, "DebugIdentity")[0].shape == (2, 2) and dump.get_tensors("biased", 0, "DebugIdentity")[0].shape == (2, 2)
