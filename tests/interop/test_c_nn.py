"""Layers, initialisers, losses and metrics of nn.h (tests/interop/c/nnmodels.c) against tf.compat.v1: the same seeds give the same variables, by name and value,
and the same results. What C builds runs on our server and in TensorFlow."""
import os
import pathlib
import subprocess

import numpy as np
import pytest
import tensorflow as tf2
from clusters import BIN

tf = tf2.compat.v1
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
TOOL = str(pathlib.Path(BIN).parent / "tests" / "interop" / "c" / "nnmodels")
ENV = {k: v for k, v in os.environ.items() if k != "TRAINERA_OPS_SEEN"}
R = np.random.RandomState(5)
FEEDS = {
    "image": R.normal(size=(3, 8, 8, 3)).astype(np.float32),
    "rows": R.normal(size=(4, 6)).astype(np.float32),
    "series": R.normal(size=(2, 5, 4)).astype(np.float32),
    "series_any": R.normal(size=(2, 6, 4)).astype(np.float32),
    "flag": np.array(True),
    "labels": np.eye(3, dtype=np.float32)[[0, 2, 1, 1]],
    "preds": R.uniform(0.05, 0.95, (4, 3)).astype(np.float32),
    "ids": np.array([0, 2, 1, 1], np.int32),
    "weights": np.array([[1.0], [0.0], [2.5], [0.5]], np.float32),
    "weights1": np.array([1.0, 0.0, 2.5, 0.5], np.float32),
    "deep": R.normal(size=(2, 2, 3)).astype(np.float32),
    "deep_ids": np.array([[0, 1], [2, 2]], np.int64),
    "truth": np.array([1, 0, 1, 0], np.float32),
    "guess": np.array([0.8, 0.6, 0.3, 0.1], np.float32),
    "ids4": np.array([0, 2, 1], np.int32),
    "words": R.randint(0, 20, (4, 5)).astype(np.int32),
    "lengths": np.array([2, 5], np.int32),
    "true1": np.array([[0], [7], [49], [7]], np.int32),
    "true2": np.array([[0, 1], [7, 30], [49, 2], [7, 7]], np.int64),
}


def feed(name, *shape):
    return tf.placeholder(FEEDS[name].dtype, shape, name=name)


def image():
    return feed("image", None, 8, 8, 3)


def rows():
    return feed("rows", None, 6)


def series():
    return feed("series", None, 5, 4)


def dense():
    L, out = tf.layers, {}
    h = L.dense(rows(), 16, activation=tf.nn.relu, kernel_regularizer=tf2.keras.regularizers.l1_l2(0.1, 0.01))
    h = L.dense(h, 8, use_bias=False, activation=tf.nn.tanh, kernel_initializer=tf.initializers.he_normal())
    out["y"] = L.dense(h, 4, name="logits", bias_initializer=tf.initializers.random_normal(seed=7))
    out["series"] = L.dense(series(), 3, name="each")
    out["reg"] = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)[0]
    return out


def conv():
    L, out, x = tf.layers, {}, image()
    h = L.conv2d(x, 8, 3, padding="same", activation=tf.nn.relu)
    h = L.max_pooling2d(h, 2, 2)
    h = L.conv2d(h, 4, (2, 3), strides=(2, 1), bias_initializer=tf.constant_initializer(0.5))
    out["y"] = h
    out["flat"] = L.dense(L.flatten(L.average_pooling2d(h, 2, 1, padding="same")), 2)
    out["dilated"] = L.conv2d(x, 2, 3, dilation_rate=2)
    out["line"] = L.conv1d(series(), 6, 3, strides=2, activation=tf.nn.relu)
    out["separable"] = L.separable_conv2d(x, 5, 3, depth_multiplier=2)
    out["up"] = L.conv2d_transpose(x, 4, 3, strides=2)
    out["up_same"] = L.conv2d_transpose(x, 4, 3, strides=2, padding="same")
    return out


def norm():
    L, out, x, r = tf.layers, {}, image(), rows()
    out["train"] = L.batch_normalization(x, training=True, name="batch_normalization")
    out["rows"] = L.batch_normalization(r, training=True, momentum=0.9, scale=False)
    out["eval"] = L.batch_normalization(x, training=False, name="batch_normalization", reuse=True)
    flag = feed("flag")
    out["either"] = L.batch_normalization(x, training=flag, epsilon=0.01, name="batch_normalization_3")
    out["update"] = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    return out


def dropout():
    x = rows()
    return {"first": tf.nn.dropout(x, rate=0.3), "rows": tf.nn.dropout(x, rate=0.5, seed=11, noise_shape=[tf.shape(x)[0], 1]), "eval": tf.identity(x)}


def inits():
    i = tf.initializers
    many = {
        "default": None, "zeros": i.zeros(), "ones": i.ones(), "constant": i.constant(0.3), "uniform": i.random_uniform(-0.2, 0.7), "normal": i.random_normal(0.5, 2),
        "truncated": i.truncated_normal(0.1, 0.3), "glorot_uniform": i.glorot_uniform(), "glorot_normal": i.glorot_normal(), "he_uniform": i.he_uniform(),
        "he_normal": i.he_normal(), "lecun_uniform": i.lecun_uniform(), "lecun_normal": i.lecun_normal(),
        "scaled": i.variance_scaling(3, "fan_out", "untruncated_normal"), "orthogonal": i.orthogonal(2), "seeded": i.random_uniform(0, 1, seed=99),
    }
    for name, init in many.items():
        tf.get_variable(name + "_m", [7, 5], initializer=init)
        tf.get_variable(name + "_k", [3, 3, 4, 6], initializer=init)
        if name != "orthogonal":
            tf.get_variable(name + "_v", [9], tf.float64, initializer=init)
    tf.get_variable("identity", [7, 5], initializer=i.identity(1.5))
    tf.get_variable("ids", [9], tf.int32)
    return {}


def losses():
    out, l, p, ids = {}, feed("labels", None, 3), feed("preds", None, 3), feed("ids", None)
    w, w1 = feed("weights", None, 1), feed("weights1", None)
    red = tf.losses.Reduction
    how = {"plain": {}, "w": {"weights": w}, "half": {"weights": 0.5}, "mean": {"weights": w, "reduction": red.MEAN}, "sum": {"weights": w, "reduction": red.SUM},
           "batch": {"weights": w, "reduction": red.SUM_OVER_BATCH_SIZE}, "none": {"weights": w, "reduction": red.NONE}, "special": {}}
    for name, o in how.items():
        special = name == "special"
        per_row = {k: w1 if v is w else v for k, v in o.items()}
        smooth = {"label_smoothing": 0.1} if special else {}
        out["mse_" + name] = tf.losses.mean_squared_error(l, p, **o)
        out["abs_" + name] = tf.losses.absolute_difference(l, p, **o)
        out["huber_" + name] = tf.losses.huber_loss(l, p, **o, **({"delta": 0.5} if special else {}))
        out["log_" + name] = tf.losses.log_loss(l, p, **o, **({"epsilon": 0.01} if special else {}))
        out["hinge_" + name] = tf.losses.hinge_loss(l, p, **o)
        out["sigmoid_" + name] = tf.losses.sigmoid_cross_entropy(l, p, **o, **smooth)
        out["softmax_" + name] = tf.losses.softmax_cross_entropy(l, p, **per_row, **smooth)
        out["sparse_" + name] = tf.losses.sparse_softmax_cross_entropy(ids, p, **per_row)
    out["sparse_deep"] = tf.losses.sparse_softmax_cross_entropy(feed("deep_ids", None, 2), feed("deep", None, 2, 3), reduction=red.NONE)
    return out


def metrics():
    out, m, l, p, w = {}, tf.metrics, feed("truth", None), feed("guess", None), feed("weights1", None)
    scores, ids = feed("preds", None, 3), feed("ids", None)
    hard = tf.round(p)
    for name, weights in (("plain", None), ("w", w)):
        made = {
            "mean": m.mean(p, weights), "accuracy": m.accuracy(l, hard, weights), "mse": m.mean_squared_error(l, p, weights),
            "rmse": m.root_mean_squared_error(l, p, weights), "mae": m.mean_absolute_error(l, p, weights), "precision": m.precision(l, hard, weights),
            "recall": m.recall(l, hard, weights), "roc": m.auc(l, p, weights), "pr": m.auc(l, p, weights, num_thresholds=50, curve="PR"),
            "top": m.mean(tf.cast(tf.nn.in_top_k(scores, ids, 2), tf.float32), weights, name="top_k_accuracy"),
        }
        for k, (value, update) in made.items():
            out[f"{k}_{name}_update"], out[f"{k}_{name}_value"] = update, value
    return out


def rnn():
    out, x, lengths = {}, series(), feed("lengths", None)
    C = tf.nn.rnn_cell
    out["lstm"], s = tf.nn.dynamic_rnn(C.BasicLSTMCell(7), x, dtype=tf.float32)
    out["lstm_c"], out["lstm_h"] = s.c, s.h
    out["gru"], out["gru_h"] = tf.nn.dynamic_rnn(C.GRUCell(6), x, lengths, dtype=tf.float32, scope="gru")
    out["cut"], s = tf.nn.dynamic_rnn(C.BasicLSTMCell(3, forget_bias=0.5, activation=tf.nn.relu), x, lengths, dtype=tf.float32, scope="cut")
    out["cut_c"] = s.c
    out["free"], s = tf.nn.dynamic_rnn(C.BasicLSTMCell(5), feed("series_any", None, None, 4), lengths, dtype=tf.float32, scope="free")
    out["free_c"] = s.c
    return out


def embedding():
    out = {}
    table = tf.get_variable("embedding/embeddings", [10, 4], initializer=tf.initializers.random_uniform(-0.05, 0.05))
    out["y"] = tf.nn.embedding_lookup(table, feed("ids", None))
    x = rows()
    gamma, beta = tf.get_variable("layer_normalization/gamma", initializer=tf.ones(6)), tf.get_variable("layer_normalization/beta", initializer=tf.zeros(6))
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    out["norm"] = tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-3)
    n = tf.nn
    gelu = lambda t: tf2.nn.gelu(t, approximate=False)  # noqa: E731
    for i, f in enumerate([n.relu, n.relu6, n.leaky_relu, n.elu, n.selu, gelu, n.swish, n.sigmoid, n.tanh, n.softplus, n.softsign, n.softmax]):
        out[f"act{i}"] = f(x)
    return out


def schedules():
    t, gs = tf.train, tf.train.get_or_create_global_step()
    return {
        "exponential": t.exponential_decay(0.1, gs, 4, 0.5), "stairs": t.exponential_decay(0.1, gs, 2, 0.5, staircase=True), "natural": t.natural_exp_decay(0.1, gs, 4, 0.5),
        "inverse": t.inverse_time_decay(0.1, gs, 2, 0.5, staircase=True), "piecewise": t.piecewise_constant(gs, [1, 20], [1.0, 0.5, 0.25]),
        "polynomial": t.polynomial_decay(0.1, gs, 10, 0.01, 2), "cycle": t.polynomial_decay(0.1, gs, 2, 0.01, 0.5, cycle=True), "cosine": t.cosine_decay(0.1, gs, 10, 0.1),
        "restarts": t.cosine_decay_restarts(0.1, gs, 2, 2.0, 0.5, 0.1), "linear_cosine": t.linear_cosine_decay(0.1, gs, 10, 0.5, 0.1, 0.001),
        "noisy": t.noisy_linear_cosine_decay(0.1, gs, 10, 0.8, 0.55, 0.4, 0.1, 0.001), "noisy_late": t.noisy_linear_cosine_decay(0.1, gs, 2, 1.0, 0.7, 0.5, 0.0, 0.01),
        "update": [gs.assign_add(3).op],
    }


def sampled():
    normal, cut = tf.initializers.random_normal(0, 0.5), tf.fixed_size_partitioner
    x, one, two, out = rows(), feed("true1", None, 1), feed("true2", None, 2), {}
    w, b = tf.get_variable("w", [50, 6], initializer=normal), tf.get_variable("b", [50], initializer=normal)
    pw, pb = tf.get_variable("pw", [50, 6], initializer=normal, partitioner=cut(3)), tf.get_variable("pb", [50], initializer=normal, partitioner=cut(2))

    def add(label, loss, of):
        out[label] = loss
        for i, g in enumerate(tf.gradients(loss, of)):
            out[f"{label}_g{i}"] = tf.convert_to_tensor(g)

    whole, pieces, R = [x, w, b], [x, *pw, *pb], tf.random
    add("nce", tf.nn.nce_loss(w, b, one, x, 8, 50), whole)
    add("softmax", tf.nn.sampled_softmax_loss(w, b, two, x, 20, 50, num_true=2, seed=4), whole)
    c = R.uniform_candidate_sampler(two, 2, 30, True, 50, seed=5)
    add("nce_div", tf.nn.nce_loss(pw, pb, two, x, 30, 50, num_true=2, sampled_values=c, remove_accidental_hits=True, partition_strategy="div"), pieces)
    long = tf.cast(one, tf.int64)
    # nce_loss takes no seed.
    c = R.log_uniform_candidate_sampler(long, 1, 5, True, 50, seed=6)
    add("nce_mod", tf.nn.nce_loss(pw, pb, long, x, 5, 50, sampled_values=c), pieces)
    c = R.learned_unigram_candidate_sampler(long, 1, 12, False, 50, seed=7)
    add("softmax_div", tf.nn.sampled_softmax_loss(pw, pb, long, x, 12, 50, sampled_values=c, remove_accidental_hits=False, partition_strategy="div"), pieces)
    out["drawn"], out["expected"], out["drawn_expected"] = R.fixed_unigram_candidate_sampler(two, 2, 9, True, 50, distortion=0.75, unigrams=list(range(50, 0, -1)), seed=8)
    c = R.all_candidate_sampler(long, 1, 50, True)
    add("all", tf.nn.sampled_softmax_loss(w, b, long, x, 50, 50, sampled_values=c), whole)
    return out


MODELS = [dense, conv, norm, dropout, inits, losses, metrics, rnn, embedding, schedules, sampled]


def build_c(case, tmp_path):
    p = subprocess.run([TOOL, case, tmp_path / "c.pb"], capture_output=True, text=True, env=ENV, timeout=60)
    assert p.returncode == 0, p.stderr
    outs, runs, names = {}, {}, []
    for line in p.stdout.splitlines():
        kind, *rest = line.split()
        if kind == "out":
            outs[rest[0]] = rest[1]
        elif kind == "run":
            runs.setdefault(rest[0], []).append(rest[1])
        else:
            names.append(rest[0])
    return tf.GraphDef.FromString((tmp_path / "c.pb").read_bytes()), outs, runs, names


def feeds_of(graph):
    return {op.name + ":0": FEEDS[op.name] for op in graph.get_operations() if op.type == "Placeholder" and op.name in FEEDS}


def steps(session, graph, init, fetch, values, update):
    """Initial variables, two steps (metrics add up, moving averages move), the variables at the end."""
    feed_dict = feeds_of(graph)
    session.run(init)
    got = [session.run(values)]
    for _ in range(2):
        updates = session.run({k: v for k, v in fetch.items() if k.endswith("_update")}, feed_dict)
        got.append(updates | session.run({k: v for k, v in fetch.items() if k not in updates}, feed_dict))
        if update:
            session.run(update, feed_dict)
    got.append(session.run(values))
    return got


def same(ours, theirs, exact):
    assert sorted(ours) == sorted(theirs)
    for k, want in theirs.items():
        if exact:
            np.testing.assert_array_equal(ours[k], want, err_msg=k)
        else:
            np.testing.assert_allclose(ours[k], want, rtol=2e-5, atol=2e-6, err_msg=k)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_same_as_tensorflow(shared, tmp_path, model):
    case = model.__name__
    with tf.Graph().as_default() as g, tf.variable_scope("", use_resource=True):
        tf.set_random_seed(42)
        outs = model()
        update = outs.pop("update", None)
        variables = {v.op.name: v for v in tf.global_variables() + tf.local_variables()}
        init = [tf.global_variables_initializer(), tf.local_variables_initializer()]
        with tf.Session() as s:
            theirs = steps(s, g, init, outs, variables, update)
    graph_def, c_outs, c_runs, names = build_c(case, tmp_path)
    if case != "metrics":  # those of metrics have more scopes in TensorFlow
        assert sorted(names) == sorted(variables)
    assert list(c_outs) == list(outs)
    for target in (shared.target(), ""):
        with tf.Graph().as_default() as g:
            tf.import_graph_def(graph_def, name="")
            values = {n: g.get_tensor_by_name(n + "/Read/ReadVariableOp:0") for n in (variables if case != "metrics" else [])}
            with tf.Session(target, graph=g) as s:
                ours = steps(s, g, c_runs["init"], c_outs, values, c_runs.get("update"))
        if case != "metrics":
            same(ours[0], theirs[0], case != "inits")
            same(ours[3], theirs[3], False)
            if case == "inits":
                same({k: v for k, v in ours[0].items() if "orthogonal" not in k}, {k: v for k, v in theirs[0].items() if "orthogonal" not in k}, True)
        for i in (1, 2):
            same(ours[i], theirs[i], case == "dropout")


# ---- training: the same loss curve from the same seeds


def sparse(ids, logits):
    return tf.losses.sparse_softmax_cross_entropy(ids, logits)


def train_mlp():
    h = tf.layers.dense(rows(), 32, activation=tf.nn.relu)
    return tf.train.AdamOptimizer(0.01), sparse(feed("ids", None), tf.layers.dense(h, 3))


def train_conv():
    L = tf.layers
    h = L.conv2d(image(), 8, 3, padding="same", activation=tf.nn.relu, kernel_regularizer=tf2.keras.regularizers.l2(0.001))
    h = L.dense(L.flatten(L.max_pooling2d(h, 2, 2)), 16, activation=tf.nn.relu)
    sparse(feed("ids4", None), L.dense(tf.nn.dropout(h, rate=0.4), 3))
    step = tf.train.get_or_create_global_step()
    return tf.train.MomentumOptimizer(tf.train.exponential_decay(0.05, step, 5, 0.9), 0.9, use_nesterov=True), tf.losses.get_total_loss()


def train_norm():
    L = tf.layers
    h = L.batch_normalization(L.conv2d(image(), 8, 3), training=True)
    flag = feed("flag")
    h = L.batch_normalization(L.conv2d(h, 4, 3), training=flag)
    h = L.batch_normalization(L.dense(tf.reduce_mean(tf.nn.relu(h), [1, 2]), 8), training=flag)
    return tf.train.RMSPropOptimizer(0.01), sparse(feed("ids4", None), L.dense(h, 3))


def train_lstm():
    table = tf.get_variable("embedding/embeddings", [20, 6], initializer=tf.initializers.random_uniform(-0.05, 0.05))
    _, s = tf.nn.dynamic_rnn(tf.nn.rnn_cell.BasicLSTMCell(12), tf.nn.embedding_lookup(table, feed("words", None, 5)), dtype=tf.float32)
    return tf.train.AdagradOptimizer(0.1), sparse(feed("ids", None), tf.layers.dense(s.h, 3))


def train_loop():
    return train_lstm()


def train_sampled():
    w = tf.get_variable("w", [50, 6], initializer=tf.initializers.random_normal(0, 0.5))
    b = tf.get_variable("b", [50], initializer=tf.initializers.zeros())
    return tf.train.AdagradOptimizer(0.5), tf.reduce_mean(tf.nn.nce_loss(w, b, feed("true1", None, 1), tf.layers.dense(rows(), 6), 10, 50))


@pytest.mark.parametrize("model", [train_mlp, train_conv, train_norm, train_lstm, train_loop, train_sampled], ids=lambda m: m.__name__)
def test_same_loss_curve(shared, tmp_path, model):
    def curve(s, g, init, train, loss):
        s.run(init)
        return [s.run([train, loss], feeds_of(g))[1] for _ in range(20)]

    with tf.Graph().as_default() as g, tf.variable_scope("", use_resource=True):
        tf.set_random_seed(42)
        opt, loss = model()
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train = opt.minimize(loss, tf.train.get_or_create_global_step())
        names = {v.op.name for v in tf.global_variables()}
        with tf.Session() as s:
            theirs = curve(s, g, tf.global_variables_initializer(), train, loss)
    graph_def, outs, runs, c_names = build_c(model.__name__, tmp_path)
    assert set(c_names) == names  # slots too
    with tf.Graph().as_default() as g:
        tf.import_graph_def(graph_def, name="")
        with tf.Session(shared.target(), graph=g) as s:
            ours = curve(s, g, runs["init"], runs["train"], outs["loss"])
    assert theirs[-1] < theirs[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
