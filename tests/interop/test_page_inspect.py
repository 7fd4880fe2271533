"""trainera inspect on what TensorFlow wrote."""
import json
import pathlib
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from clusters import BIN

tf1 = tf.compat.v1


def inspect(*args, code=0):
    p = subprocess.run([BIN, "inspect", *map(str, args)], capture_output=True, text=True, timeout=60)
    assert p.returncode == code, p.stdout + p.stderr
    return p.stdout if "--json" not in args else json.loads(p.stdout) if p.stdout else p.stderr


def save(folder, bias=0.0, version=2, sharded=False):
    g = tf1.Graph()
    with g.as_default():
        tf1.get_variable("w", initializer=np.arange(12, dtype="f").reshape(3, 4))
        tf1.get_variable("layer/b", initializer=np.full([5], bias, "f"))
        if version == 2:
            tf1.get_variable("parts", [10, 4], initializer=tf1.ones_initializer(), partitioner=tf1.fixed_size_partitioner(2))
        tf1.get_variable("words", initializer=tf.constant(["a", "bc\x1b"]))
        tf1.train.get_or_create_global_step()
        saver = tf1.train.Saver(write_version=version, sharded=sharded)
        with tf1.Session() as sess:
            sess.run(tf1.global_variables_initializer())
            return saver.save(sess, str(folder / "model.ckpt"), global_step=7)


def test_checkpoint(tmp_path):
    prefix = save(tmp_path)
    for path in prefix, prefix + ".index", prefix + ".data-00000-of-00001", tmp_path:
        c = inspect("--json", path)["checkpoint"]
        assert c["prefix"] == prefix and c["version"] == 2 and c["tensors"] == 5
        by = {t["name"]: t for t in c["list"]}
        reader = tf.train.load_checkpoint(prefix)
        shapes = reader.get_variable_to_shape_map()
        assert {n: t["shape"] for n, t in by.items()} == shapes
        assert by["w"]["bytes"] == 48 and by["w"]["shard"] == 0 and by["parts"]["pieces"] == 2 and by["parts"]["bytes"] == 160
        assert sum(s["bytes"] for s in c["shards"]) == c["bytes"]
    out = inspect("--print", "w", "--print", "words", "--values", "5", prefix)
    assert "0 1 2 3 4" in out and "\x1b" not in out
    assert "every checksum is right" in inspect("--verify", prefix)
    inspect("--print", "nothing", prefix, code=1)


def test_damage_is_found(tmp_path):
    prefix = save(tmp_path)
    data = pathlib.Path(prefix + ".data-00000-of-00001")
    raw = bytearray(data.read_bytes())
    raw[len(raw) // 2] ^= 1
    data.write_bytes(raw)
    assert "damaged" in inspect("--verify", prefix, code=1)
    d = inspect("--json", "--verify", prefix, code=1)["checkpoint"]
    assert d["ok"] is False and sum(not t["ok"] for t in d["list"]) == 1


def test_two_are_compared(tmp_path):
    for d in "abc":
        (tmp_path / d).mkdir()
    a, b, c = save(tmp_path / "a"), save(tmp_path / "b", bias=0.5), save(tmp_path / "c")
    assert "0 are not" in inspect(a, c)
    d = inspect("--json", a, b, code=1)
    assert d["different"] == 1 and d["differences"] == [{"name": "layer/b", "what": "values differ", "by": 0.5}] and d["same"] == 4


def test_version_1(tmp_path):
    prefix = save(tmp_path, version=1)
    c = inspect("--json", "--verify", "--print", "w", prefix)["checkpoint"]
    assert c["version"] == 1 and {t["name"] for t in c["list"]} == {"w", "layer/b", "words", "global_step"} and c["ok"]
    assert "0 1 2" in [t for t in c["list"] if t["name"] == "w"][0]["value"]


def test_graphs(tmp_path):
    prefix = save(tmp_path)
    m = inspect("--json", prefix + ".meta")["graph"]
    assert m["kind"] == "MetaGraphDef" and m["missing"] == [] and m["collections"]["variables"] == 6
    g = tf1.Graph()
    with g.as_default():
        tf.constant(np.zeros(1000, "f") + np.arange(1000), name="big")
        x = tf1.placeholder(tf.float32, [2, 2])
        tf.matmul(x, x)
    tf1.train.write_graph(g, str(tmp_path), "g.pbtxt")
    tf1.train.write_graph(g, str(tmp_path), "g.pb", as_text=False)
    for name, text in ("g.pbtxt", True), ("g.pb", False):
        d = inspect("--json", tmp_path / name)["graph"]
        assert d["text"] == text and d["nodes"] == 3 and {o["op"]: o["nodes"] for o in d["ops"]} == {"Const": 1, "Placeholder": 1, "MatMul": 1}
        assert d["constant_bytes"] > 1000
    bad = g.as_graph_def()
    bad.node.add(name="strange", op="NobodyHasThis")
    (tmp_path / "bad.pb").write_bytes(bad.SerializeToString())
    d = inspect("--json", tmp_path / "bad.pb", code=1)["graph"]
    assert d["missing"][0]["op"] == "NobodyHasThis" and d["missing"][0]["first_node"] == "strange"
    assert "missing: NobodyHasThis" in inspect(tmp_path / "bad.pb", code=1)


def test_saved_model(tmp_path):
    with tf1.Graph().as_default():
        x = tf1.placeholder(tf.float32, [None], name="x")
        v = tf1.get_variable("v", initializer=3.0)
        y = tf.multiply(x, v, name="y")
        with tf1.Session() as s:
            s.run(tf1.global_variables_initializer())
            tf1.saved_model.simple_save(s, str(tmp_path / "m" / "1"), {"x": x}, {"y": y})
    d = inspect("--json", tmp_path / "m" / "1")
    meta = d["graph"]["meta_graphs"][0]
    assert meta["tags"] == ["serve"] and meta["signatures"]["serving_default"] == {"inputs": {"x": "x:0"}, "outputs": {"y": "y:0"}} and meta["missing"] == []
    assert d["checkpoint"]["list"][0]["name"] == "v"
    assert "serving_default" in inspect(tmp_path / "m" / "1")


def test_events(tmp_path):
    w = tf1.summary.FileWriter(str(tmp_path))
    for i in range(100):
        w.add_summary(tf1.Summary(value=[tf1.Summary.Value(tag="loss", simple_value=1.0 / (i + 1)), tf1.Summary.Value(tag="t2", tensor=tf.make_tensor_proto(float(i)))]), i)
    w.close()
    f = next(tmp_path.glob("*tfevents*"))
    d = inspect("--json", f)["events"]
    by = {s["tag"]: s["points"] for s in d["scalars"]}
    assert len(by["loss"]) == 100 and by["loss"][9]["step"] == 9 and by["loss"][9]["value"] == pytest.approx(0.1) and by["t2"][50]["value"] == 50
    assert not d["ends_inside_a_record"]
    out = inspect(tmp_path)
    assert "loss: 100 values" in out and "*" in out and "step 0 to 99" in out
    raw = f.read_bytes()
    f.write_bytes(raw[:-5])
    assert inspect("--json", f)["events"]["ends_inside_a_record"]
    f.write_bytes(raw[:200] + bytes([raw[200] ^ 1]) + raw[201:])
    inspect(f, code=1)


def test_what_is_nothing(tmp_path):
    inspect(tmp_path, code=1)
    inspect(tmp_path / "none", code=1)
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 40)
    inspect(tmp_path / "noise", code=1)
    inspect(code=2)
