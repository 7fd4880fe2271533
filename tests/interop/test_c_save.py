"""Checkpoints, meta graphs, saved models and event files of the C API (tests/interop/c/savetool.c) and of TensorFlow, each read by the other."""
import os
import pathlib
import random
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf2
from clusters import BIN
from google.protobuf import text_format

tf = tf2.compat.v1
TOOL = str(pathlib.Path(BIN).parent / "tests" / "interop" / "c" / "savetool")
COMPARES = False


def tool(*args, ok=True):
    p = subprocess.run([TOOL, *map(str, args)], capture_output=True, text=True, timeout=60)
    if ok and p.returncode:
        raise RuntimeError(p.stderr)
    return p.stdout if ok else p.stderr


def tensors(text):
    """What print_tensor wrote: {name: array}; strings as bytes."""
    found = {}
    for line in text.splitlines():
        name, dtype, shape, *values = line.split(" ")
        dims = [int(d) for d in shape[1:-1].split(",") if d]
        kind = {"float": np.float32, "double": np.float64, "int32": np.int32, "int64": np.int64, "bool": np.bool_}.get(dtype)
        if kind:
            found[name] = np.array([float(v) for v in values], kind).reshape(dims)
        elif dtype == "string":
            found[name] = [bytes.fromhex(v) for v in values]
        else:
            found[name] = None
    return found


def same(ours, theirs):
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    assert np.asarray(ours).dtype == np.asarray(theirs).dtype


def saved(values):
    """What a checkpoint of savetool's model holds, from what its variables were."""
    want = {k: v for k, v in values.items() if not k.startswith("table/") and k != "scratch"}
    want["table"] = np.concatenate([values["table/part_0"], values["table/part_1"]])
    return want


def check_with_tensorflow(folder, values):
    assert tf.train.latest_checkpoint(str(folder)) == str(folder / "model.ckpt-3")
    state = tf.train.get_checkpoint_state(str(folder))
    assert [pathlib.Path(p).name for p in state.all_model_checkpoint_paths] == ["model.ckpt-2", "model.ckpt-3"]
    assert tf2.train.load_checkpoint(str(folder / "model.ckpt-2")).get_tensor("global_step") == 2
    reader, want = tf2.train.load_checkpoint(str(folder)), saved(values)
    assert set(reader.get_variable_to_shape_map()) == set(want)
    for name, value in want.items():
        same(reader.get_tensor(name), value)
    # A Saver of TensorFlow, in a graph of its own; the partitioned variable in other pieces.
    with tf.Graph().as_default(), tf.Session() as sess:
        v = {n: tf.get_variable(n, value.shape, tf.as_dtype(value.dtype), use_resource=i % 2 == 0, trainable=False)
             for i, (n, value) in enumerate(want.items()) if n != "table"}
        table = tf.get_variable("table", [3, 2], tf.float64, partitioner=tf.fixed_size_partitioner(3))
        tf.train.Saver().restore(sess, str(folder / "model.ckpt-3"))
        for n in v:
            same(sess.run(v[n]), want[n])
        same(sess.run(tf.convert_to_tensor(table)), want["table"])


def test_tensorflow_reads_ours(tmp_path):
    check_with_tensorflow(tmp_path, tensors(tool("write", tmp_path)))


def test_tensorflow_reads_ours_sharded(cluster, tmp_path):
    folder = tmp_path / "run"
    values = tensors(tool("write", folder, cluster(ps=2).target("worker")))
    assert len(list(folder.glob("model.ckpt-3.data-*-of-00002"))) == 2
    assert not list(folder.glob("*_temp"))
    check_with_tensorflow(folder, values)


def test_on_tensorflow_servers(cluster, tmp_path):
    """The same program on a cluster of the real TensorFlow: its servers run our save nodes."""
    folder = tmp_path / "run"
    values = tensors(tool("write", folder, cluster(ps=2, ps_kind="tf", worker_kind="tf").target("worker")))
    check_with_tensorflow(folder, values)


# ---- meta graphs


def test_import_meta_graph_of_ours(tmp_path):
    ours = tensors(tool("write", tmp_path))
    graph = text_format.Parse((tmp_path / "graph.pbtxt").read_text(), tf.GraphDef())
    assert {"layer/w", "save/restore_all"} <= {n.name for n in graph.node}
    ckpt = str(tmp_path / "model.ckpt-3")
    with tf.Graph().as_default() as g, tf.Session() as sess:
        saver = tf.train.import_meta_graph(ckpt + ".meta")
        saver.restore(sess, ckpt)
        assert {v.op.name for v in tf.trainable_variables()} == {"layer/w", "layer/b"}
        assert {v.op.name for v in tf.global_variables()} == set(ours)
        assert [v.op.name for v in tf.local_variables()] == ["mine"]
        assert tf.train.get_global_step().op.name == "global_step"
        assert tf.get_collection("losses")[0].name == "loss:0"
        assert len(tf.get_collection("summaries")) == 1
        assert [v._save_slice_info.full_name for v in tf.global_variables() if v._save_slice_info] == ["table", "table"]
        w = g.get_tensor_by_name("layer/w/Read/ReadVariableOp:0")
        same(sess.run(w), ours["layer/w"])
        sess.run(tf.get_collection("train_op"))
        there = {v.op.name: sess.run(v) for v in tf.global_variables() if v.op.name != "scratch"}
        path = saver.save(sess, str(tmp_path / "theirs"))
    here = tensors(tool("train", ckpt + ".meta", ckpt))
    assert there["global_step"] == 4
    for name, value in tensors(tool("dump", path)).items():  # TensorFlow trained on, we read it
        same(value, saved(there)[name] if name == "table" else there[name])
    for name in ("layer/w", "layer/b", "layer/w/Adam"):  # and one step of ours from the same place is the same step
        np.testing.assert_allclose(here[name], there[name], rtol=1e-5)


def test_we_import_a_meta_graph_of_tensorflow(tmp_path):
    with tf.Graph().as_default(), tf.Session() as sess:
        x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        w = tf.get_variable("w", [2, 2], initializer=tf.ones_initializer(), use_resource=True)
        b = tf.get_variable("b", [2], initializer=tf.zeros_initializer(), use_resource=False)
        table = tf.get_variable("t", [4, 2], initializer=tf.ones_initializer(), partitioner=tf.fixed_size_partitioner(2))
        step = tf.train.get_or_create_global_step()
        tf.get_variable("local", [], collections=[tf.GraphKeys.LOCAL_VARIABLES])
        loss = tf.reduce_mean(tf.square(x @ w + b)) + tf.reduce_sum(tf.convert_to_tensor(table))
        train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, step)
        tf.add_to_collection("train_op", train)
        saver = tf.train.Saver(sharded=True)
        sess.run(tf.global_variables_initializer())
        sess.run(train)
        path = saver.save(sess, str(tmp_path / "m"), global_step=1)
        sess.run(train)
        want = {v.op.name: sess.run(v) for v in tf.global_variables()}
    got = tensors(tool("train", path + ".meta", path))
    assert set(got) == set(want)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6)
    with tf.Graph().as_default(), tf.Session() as sess:  # and TensorFlow takes over from us
        saver = tf.train.import_meta_graph(path + ".c.meta")
        saver.restore(sess, path + ".c")
        for v in tf.global_variables():
            same(sess.run(v), got[v.op.name])


def test_parts_of_graphs_both_ways(tmp_path):
    """export_scope, import_scope and inputs from elsewhere."""
    tool("export_scope", tmp_path / "c.meta")
    with tf.Graph().as_default(), tf.Session() as sess:
        tf.train.import_meta_graph(str(tmp_path / "c.meta"), import_scope="theirs", input_map={"$unbound_inputs_outer/x": tf.constant([[1.0, 2.0]])})
        assert [v.op.name for v in tf.trainable_variables()] == ["theirs/w"]
        sess.run(tf.global_variables_initializer())
        assert [(t.name, sess.run(t).tolist()) for t in tf.get_collection("losses")] == [("theirs/y:0", [[11.0]])]
    with tf.Graph().as_default() as g:
        with tf.name_scope("outer"):
            x = tf.placeholder(tf.float32, [None, 2], "x")
        with tf.name_scope("tower/"):
            w = tf.Variable([[5.0], [6.0]], use_resource=True, name="w")
            with tf.colocate_with(x), tf.control_dependencies([w.initializer]):
                y = tf.matmul(x, w, name="y")
        tf.add_to_collection("losses", y)
        tf.train.export_meta_graph(str(tmp_path / "tf.meta"), graph=g, export_scope="tower")
    assert tool("import_scope", tmp_path / "tf.meta").split() == ["mine/y:0", "17", "mine/w"]


# ---- checkpoints of TensorFlow's other writers


@pytest.mark.parametrize("version", [tf.train.SaverDef.V1, tf.train.SaverDef.V2])
@pytest.mark.parametrize("sharded", [False, True])
def test_we_read_savers(tmp_path, version, sharded):
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as sess:
        with tf.device("/cpu:0"):
            tf.get_variable("a", [2, 3], initializer=tf.random_normal_initializer())
            tf.get_variable("n", [], tf.int64, initializer=tf.constant_initializer(1 << 40))
        with tf.device("/cpu:1"):
            tf.get_variable("s/t", [5, 2], tf.float64, initializer=tf.random_normal_initializer(), partitioner=tf.fixed_size_partitioner(2))
        sess.run(tf.global_variables_initializer())
        path = tf.train.Saver(write_version=version, sharded=sharded).save(sess, str(tmp_path / "m"), 7)
        v = {v.op.name: sess.run(v) for v in tf.global_variables()}
    want = {"a": v["a"], "n": v["n"], "s/t": np.concatenate([v["s/t/part_0"], v["s/t/part_1"]])}
    for where in (path, tmp_path):
        got = tensors(tool("dump", where))
        assert set(got) == set(want) == {"a", "n", "s/t"}
        for n in want:
            same(got[n], want[n])
    lines = tool("restore", path, "a:float:2,3", "n:int64:", "s/t:double:5,2").splitlines()
    assert lines[:3] == lines[3:]
    got = tensors("\n".join(lines))
    for n in want:
        same(got[n], want[n])


def test_we_read_estimators(tmp_path):
    """In a process of its own: an Estimator leaves TensorFlow in another state."""
    code = f"""
import tensorflow as tf
x = tf.feature_column.numeric_column("x", shape=[2])
e = tf.estimator.LinearRegressor([x], model_dir={str(tmp_path / "est")!r})
e.train(lambda: tf.data.Dataset.from_tensors(({{"x": [[1.0, 2.0]]}}, [[3.0]])).repeat(5))
"""
    p = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    if "has no attribute 'LinearRegressor'" in p.stderr or "has no attribute 'estimator'" in p.stderr:
        pytest.skip("this TensorFlow has no estimators")
    assert p.returncode == 0, p.stderr[-2000:]
    reader = tf2.train.load_checkpoint(str(tmp_path / "est"))
    got = tensors(tool("dump", tmp_path / "est"))
    names = reader.get_variable_to_shape_map()
    assert set(got) == set(names) and got["global_step"] == 5
    for n in names:
        same(got[n], reader.get_tensor(n))


def test_we_read_objects(tmp_path):
    """tf.train.Checkpoint and Keras: values are named by the path to their object, we find them by the variables' names."""
    code = f"""
import numpy as np, tensorflow as tf
m = tf.keras.Sequential([tf.keras.layers.Dense(3, name="first", input_shape=(2,)), tf.keras.layers.Dense(1, name="second")])
o = tf.keras.optimizers.legacy.Adam(0.1)
m.compile(o, "mse")
m.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
tf.train.Checkpoint(model=m, optimizer=o).save({str(tmp_path / "ckpt")!r})
m.save_weights({str(tmp_path / "weights")!r})
np.savez({str(tmp_path / "want.npz")!r}, **{{v.name.split(":")[0].replace("/", "|"): v.numpy() for v in m.variables + o.variables()}})
"""
    p = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert p.returncode == 0, p.stderr[-2000:]
    want = {k.replace("|", "/"): v for k, v in np.load(tmp_path / "want.npz").items()}
    weights = [n for n in want if n.startswith(("first/", "second/")) and "Adam" not in n]
    assert len(weights) == 4
    got = tensors(tool("dump", tmp_path))
    for n in weights:
        same(got[n], want[n])
    assert any("first/kernel" in n and n not in weights for n in got)  # slots have names, too
    spec = [f"{n}:float:{','.join(map(str, want[n].shape))}" for n in weights]
    for path in (tmp_path / "ckpt-1", tmp_path / "weights"):
        restored = tensors(tool("restore", path, *spec))
        for n in weights:
            same(restored[n], want[n])
    assert "third/kernel" in tool("restore", tmp_path / "ckpt-1", *spec, "third/kernel:float:2,2", ok=False)


# ---- saved models


def test_tensorflow_loads_our_saved_model(tmp_path):
    folder = str(tmp_path / "model")
    tool("export", folder)
    with tf.Graph().as_default(), tf.Session() as sess:
        meta = tf.saved_model.load(sess, ["serve"], folder)
        sig = meta.signature_def["serving_default"]
        assert sig.inputs["features"].tensor_shape.dim[0].size == -1
        y = sess.run(sig.outputs["score"].name, {sig.inputs["features"].name: [[1, 2], [0, 0]]})
        np.testing.assert_allclose(y, [[11.5], [0.5]])
    code = f"""
import tensorflow as tf
m = tf.saved_model.load({folder!r})
print(m.signatures["serving_default"](features=tf.constant([[1.0, 2.0]]))["score"].numpy()[0, 0], [v.name for v in m.variables])  # no objects for reference variables
"""
    p = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert p.stdout.split(" ", 1) == ["11.5", "['w:0']\n"], p.stderr[-2000:]
    np.testing.assert_allclose(tensors(tool("serve", folder))["score"], [[11.5]])


def test_we_load_saved_models(tmp_path):
    folder = str(tmp_path / "v1")
    (tmp_path / "words").write_text("zero\none\n")
    with tf.Graph().as_default(), tf.Session() as sess:
        x = tf.placeholder(tf.float32, [None, 2], "in")
        w = tf.get_variable("w", [2, 1], initializer=tf.constant_initializer(2.0), use_resource=False)
        words = tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer(
            str(tmp_path / "words"), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER), -1)
        y = x @ w + tf.cast(words.lookup(tf.constant("one")), tf.float32)
        sess.run([tf.global_variables_initializer(), tf.tables_initializer()])
        builder = tf.saved_model.Builder(folder)
        builder.add_meta_graph_and_variables(sess, ["serve"], {"serving_default": tf.saved_model.predict_signature_def({"a": x}, {"b": y})},
                                             assets_collection=tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS), main_op=tf.tables_initializer())
        builder.save()
    (tmp_path / "words").unlink()  # the model has its own
    np.testing.assert_allclose(tensors(tool("serve", folder))["b"], [[7.0]])
    assert "saved_model.pb" in tool("serve", tmp_path / "none", ok=False)
    code = f"""
import tensorflow as tf
class M(tf.Module):
    def __init__(self): self.w = tf.Variable([[3.0], [4.0]])
    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def __call__(self, x): return dict(out=x @ self.w)
m = M()
tf.saved_model.save(m, {str(tmp_path / "v2")!r}, signatures=m.__call__)
"""
    p = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert p.returncode == 0, p.stderr[-2000:]
    np.testing.assert_allclose(tensors(tool("serve", tmp_path / "v2"))["out"], [[11.0]])


# ---- event files


def test_tensorboard_reads_our_events(tmp_path):
    from tensorboard.backend.event_processing import event_accumulator, event_file_loader
    tool("events", tmp_path / "run")
    files = list((tmp_path / "run").glob("events.out.tfevents.*"))
    assert len(files) == 1
    events = list(event_file_loader.EventFileLoader(str(files[0])).Load())
    assert events[0].file_version == "brain.Event:2" and any(e.session_log.status == 1 for e in events)
    acc = event_accumulator.EventAccumulator(str(tmp_path / "run"), {event_accumulator.TENSORS: 0, event_accumulator.HISTOGRAMS: 0})
    acc.Reload()
    tags = acc.Tags()
    assert tags["graph"] and tags["run_metadata"] == ["step1", "step2", "step3"]
    assert [e.step for e in acc.Scalars("direct/scalar")] == [1, 2, 3] and acc.Scalars("direct/scalar")[2].value == 0.75
    assert acc.Scalars("loss_summary")[0].value > acc.Scalars("loss_summary")[2].value
    h = acc.Histograms("direct/histogram")[0].histogram_value
    assert (h.min, h.max, h.num, h.sum) == (-2, 100, 5, 100)
    assert acc.Histograms("weights")[2].histogram_value.num == 6
    image = acc.Images("direct/image")[0]
    assert (image.width, image.height) == (5, 4)
    with tf.Graph().as_default(), tf.Session() as sess:
        pixels = sess.run(tf.image.decode_png(image.encoded_image_string))
        np.testing.assert_array_equal(pixels.reshape(-1), (np.arange(80) * 7) % 256)
        assert sess.run(tf.image.decode_png(acc.Images("picture/image/0")[0].encoded_image_string)).shape == (3, 4, 3)
    texts = {e.summary.value[0].tag: e.summary.value[0].tensor.string_val for e in events
             for v in e.summary.value[:1] if v.metadata.plugin_data.plugin_name == "text"}
    assert texts["direct/text"] == [b"said *directly*"]
    assert b"some *words*" in [s for e in events for v in e.summary.value for s in v.tensor.string_val]
    graph = tf.GraphDef.FromString(next(e.graph_def for e in events if e.graph_def))
    assert "layer/w" in {n.name for n in graph.node}
    meta = acc.RunMetadata("step2")
    assert meta.step_stats.dev_stats


# ---- killed at any moment


def check_folder(folder, done):
    """The state file names a checkpoint that is complete, both halves of which are of one step, and that is not older than what was reported as saved."""
    path = tf.train.latest_checkpoint(str(folder))
    if path is None:
        assert done is None
        return None
    reader = tf2.train.load_checkpoint(path)  # checks every checksum on the way
    a, b = reader.get_tensor("a"), reader.get_tensor("b")
    step = int(path.rsplit("-", 1)[1])
    assert (a == step).all() and (b == step).all()
    assert done is None or step >= done
    for named in tf.train.get_checkpoint_state(str(folder)).all_model_checkpoint_paths:
        tf2.train.load_checkpoint(named).get_tensor("a")
    return step


def killed_loop(folder, args, saves, pause, also=()):
    """One program that saves step after step (first the one that it restored), killed a pause after so many saves that it reported. Gives the last step it reported."""
    p = subprocess.Popen([TOOL, "loop", str(folder), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [p.stdout.readline() for _ in range(saves)]
    assert all(lines), p.stderr.read()
    time.sleep(pause)
    assert p.poll() is None, p.stderr.read()
    p.kill()
    for t in also:
        t.kill()
    lines += p.communicate()[0].splitlines()
    return int(lines[-1]) if lines else None


@pytest.mark.parametrize("target", [None, "cluster"])
def test_killed_while_saving(tmp_path, cluster, target):
    folder, args = tmp_path / "run", []
    if target:
        args = [cluster(ps=2).target("worker")]
    kills, reached, rng = (15 if target else 60), None, random.Random(7)
    for i in range(kills):
        # Every other one has got one step further, the rest are killed while they start, clear up, restore or save.
        last = killed_loop(folder, args, i % 2 * 2, rng.random() * 0.2)
        if last is not None:
            assert reached is None or last >= reached + i % 2  # none goes back behind what another one has reported
            reached = last
        step = check_folder(folder, reached)
        if step is not None:
            tool("verify", folder / f"m-{step}" if (folder / f"m-{step}.index").exists() else tf.train.latest_checkpoint(str(folder)))
    assert reached >= kills // 2
    # A last one that is given time: nothing is left of the others.
    born = time.time() - 0.1  # files have the time of the last tick
    p = subprocess.Popen([TOOL, "loop", str(folder), *args], stdout=subprocess.PIPE, text=True)
    for _ in range(5):
        p.stdout.readline()
    p.kill()
    p.wait()
    steps = {f.name.split(".")[0].split("-")[1] for f in folder.glob("m-*.index")}
    assert len(steps) <= 4
    for f in folder.iterdir():  # but for what the last kill itself left
        assert f.name in ("checkpoint", "graph.pbtxt") or f.stat().st_mtime > born or f.name.split(".")[0].split("-")[1].split("_")[0] in steps, f


def test_killed_with_its_cluster(tmp_path, cluster):
    folder, reached, rng = tmp_path / "run", None, random.Random(11)
    for i in range(4):
        c = cluster(ps=2)
        last = killed_loop(folder, [c.target("worker")], 2 * (i > 0), rng.random() * 0.5, c.tasks)
        if last is not None:
            assert reached is None or last >= reached + (i > 0)
            reached = last
        check_folder(folder, reached)
    assert reached >= 3
