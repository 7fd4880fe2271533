"""word2vec's ops, which graphs of versions below 19 may hold: the same pairs of words as TensorFlow's, and the same step."""
import numpy as np
import pytest
import tensorflow as tf

import both

tf1 = tf.compat.v1


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


@pytest.fixture
def text(tmp_path):
    """Words that are all differently frequent: TensorFlow leaves open how others go."""
    rng = np.random.RandomState(1)
    words = np.repeat([b"w%d" % i for i in range(12)], [7 * i + 3 for i in range(12)])
    path = tmp_path / "text8"
    path.write_bytes(b" \n".join(rng.permutation(words).tolist()) + b"\t")
    return str(path)


def old(graph, op, inputs=(), **attrs):
    """The graph with one more node, as of version 18; imported."""
    graph = graph.as_graph_def() if hasattr(graph, "as_graph_def") else graph
    node = graph.node.add(name="old", op=op, input=inputs)
    for name, v in attrs.items():
        if isinstance(v, list):
            node.attr[name].list.i.extend(v)
        else:
            setattr(node.attr[name], {bytes: "s", str: "s", int: "i", float: "f"}[type(v)], v.encode() if isinstance(v, str) else v)
    graph.versions.producer = 18
    graph.versions.min_consumer = 0
    g = tf.Graph()
    with g.as_default():
        tf.import_graph_def(graph, name="")
    return g


@pytest.mark.asan
@pytest.mark.parametrize("kw", [dict(), dict(subsample=0.0), dict(subsample=0.05, window_size=3, min_count=20), dict(window_size=1, min_count=100)], ids=str)
def test_pairs(target, text, kw):
    with old(tf.Graph(), "Skipgram", filename=text, batch_size=700, **kw).as_default():
        fetches = ["old:%d" % i for i in range(7)]
        want = both.run("", fetches, times=12)
        both.agree(both.run(target, fetches, times=12), want)
    assert not isinstance(want[0], both.Failed) and len(set(want[-1][5])) > 1 or kw.get("min_count") == 100


def test_no_text(target, tmp_path):
    (tmp_path / "few").write_text("few words")
    for name, code in ("none", tf.errors.NOT_FOUND), ("few", tf.errors.INVALID_ARGUMENT):
        with old(tf.Graph(), "Skipgram", filename=str(tmp_path / name), batch_size=1).as_default():
            for t in "", target:
                assert both.run(t, "old:0")[0].code == code


def variables(w, v):
    with tf.Graph().as_default() as g:
        a, b = tf1.get_variable("w", initializer=w, use_resource=False), tf1.get_variable("v", initializer=v, use_resource=False)
        tf1.placeholder(tf.int32, name="examples")
        tf1.placeholder(tf.int32, name="labels")
        tf1.placeholder(tf.float32, name="rate")
        tf.group(a.initializer, b.initializer, name="init")
    return g


INPUTS = ["w", "v", "examples", "labels", "rate"]


def trained(target, graph, feed, steps=1):
    with graph.as_default(), tf1.Session(target) as s:
        s.run("init")
        try:
            for _ in range(steps):
                s.run("old", feed)
        except tf.errors.OpError as e:
            return e.error_code
        return s.run(["w:0", "v:0"])


@pytest.mark.asan
def test_step(target):
    """Without counterexamples, which TensorFlow draws at random."""
    rng = np.random.RandomState(3)
    w, v = rng.randn(2, 5, 4).astype(np.float32)
    g = old(variables(w, v), "NegTrain", INPUTS, vocab_count=[5, 3, 1, 2, 9], num_negative_samples=0)
    ok = {"examples:0": [0, 3, 3, 1], "labels:0": [1, 2, 3, 1], "rate:0": 0.3}
    for a, b in zip(trained(target, g, ok, 3), trained("", g, ok, 3)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for bad in {"examples:0": [0]}, {"examples:0": [[0]]}, {"rate:0": [0.1]}:
        assert trained(target, g, {**ok, **bad}) == trained("", g, {**ok, **bad}) == tf.errors.INVALID_ARGUMENT
    for bad in {"examples:0": [0, 1, 2, 5]}, {"labels:0": [-1, 0, 0, 0]}:  # TensorFlow does not look
        assert trained(target, g, {**ok, **bad}) == tf.errors.INVALID_ARGUMENT
    few = old(variables(w, v), "NegTrain", INPUTS, vocab_count=[5, 3, 1, 2], num_negative_samples=0)
    assert trained(target, few, ok) == trained("", few, ok) == tf.errors.INVALID_ARGUMENT


def test_counterexamples(target):
    """Words that never occur are not drawn; the others as often as the 3/4th power of their counts says."""
    counts = [0, 10, 160, 0, 810]
    w, v = np.zeros((5, 1), np.float32), np.zeros((5, 1), np.float32)
    w[:] = 1
    g = old(variables(w, v), "NegTrain", INPUTS, vocab_count=counts, num_negative_samples=4000)
    rate = 1e-6  # so that v moves by half of it for each draw
    for t in "", target:
        moved = trained(t, g, {"examples:0": [0] * 5, "labels:0": [0] * 5, "rate:0": rate})[1][:, 0] / (-0.5 * rate)
        p = np.array(counts) ** 0.75
        np.testing.assert_allclose(moved[1:], (20000 * p / p.sum())[1:], rtol=0.15)
