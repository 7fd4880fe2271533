"""The models of the examples in C and the same models written for TensorFlow, from the same seeds: the same variables, and the same loss for twenty steps."""
import os
import pathlib
import subprocess

import numpy as np
import pytest
import tensorflow as tf2
from clusters import BIN

tf = tf2.compat.v1
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
TOP = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = pathlib.Path(BIN).parent / "examples"
ENV = {k: v for k, v in os.environ.items() if k not in ("TRAINERA_OPS_SEEN", "TF_CONFIG")}
STEPS = 20
R = np.random.RandomState(3)


def step_variable():
    return tf.train.get_or_create_global_step()


def digits(sizes):
    L, step = tf.layers, step_variable()
    x, y = tf.placeholder(tf.float32, [None, 64], "images"), tf.placeholder(tf.int32, [None], "labels")
    h = tf.reshape(x * (1 / 16), [-1, 8, 8, 1])
    for name, n in (("conv1", 32), ("conv2", 64)):
        h = L.max_pooling2d(L.conv2d(h, n, 3, padding="same", activation=tf.nn.relu, name=name), 2, 2)
    h = L.dense(L.flatten(h), 128, activation=tf.nn.relu, name="hidden")
    loss = tf.losses.sparse_softmax_cross_entropy(y, L.dense(tf.nn.dropout(h, rate=0.5), 10, name="logits"))
    train = tf.train.AdamOptimizer(tf.train.cosine_decay(0.003, step, STEPS)).minimize(loss, step)
    return train, loss, {"images:0": R.randint(0, 17, (64, 64)).astype(np.float32), "labels:0": R.randint(0, 10, 64)}


def trainer(sizes):
    x, y = tf.placeholder(tf.float32, [None, sizes["hidden/kernel"][0]], "x"), tf.placeholder(tf.int64, [None], "y")
    h = tf.layers.dense(x, 64, activation=tf.nn.relu, name="hidden")
    loss = tf.losses.sparse_softmax_cross_entropy(y, tf.layers.dense(h, sizes["logits/kernel"][1], name="logits"))
    train = tf.train.AdagradOptimizer(0.2).minimize(loss, step_variable())
    return train, loss, {"x:0": R.uniform(-1, 1, (64, x.shape[1])).astype(np.float32), "y:0": R.randint(0, sizes["logits/kernel"][1], 64)}


def word_embeddings(sizes):
    batch, negatives, (words, dims) = 256, 32, sizes["vectors"]
    vectors = tf.get_variable("vectors", [words, dims], initializer=tf.initializers.random_uniform(-0.01, 0.01))
    contexts = tf.get_variable("contexts", [words, dims], initializer=tf.initializers.zeros())
    centre, context = tf.placeholder(tf.int32, [None], "centre"), tf.placeholder(tf.int32, [None], "context")
    far = tf.random.log_uniform_candidate_sampler(tf.expand_dims(tf.cast(context, tf.int64), 1), 1, negatives, True, words)[0]
    v, near = tf.nn.embedding_lookup(vectors, centre), tf.nn.embedding_lookup(contexts, context)
    yes, no = tf.reduce_sum(v * near, 1), tf.matmul(v, tf.nn.embedding_lookup(contexts, far), transpose_b=True)
    entropy = tf.nn.sigmoid_cross_entropy_with_logits
    loss = tf.multiply(tf.reduce_sum(entropy(labels=tf.ones_like(yes), logits=yes)) + tf.reduce_sum(entropy(labels=tf.zeros_like(no), logits=no)), 1 / batch, name="loss")
    train = tf.train.AdagradOptimizer(0.1).minimize(loss, step_variable())
    # Frequent words have small numbers.
    return train, loss, {n: np.minimum(R.exponential(words / 8, batch), words - 1).astype(np.int32) for n in ("centre:0", "context:0")}


def char_lstm(sizes):
    time, letters, units, step = 32, sizes["letters/embeddings"][0], sizes["logits/kernel"][0], step_variable()
    chars, after = tf.placeholder(tf.int32, [None, time], "chars"), tf.placeholder(tf.int32, [None, time], "next")
    table = tf.get_variable("letters/embeddings", [letters, 32], initializer=tf.initializers.random_uniform(-0.05, 0.05))
    h, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.BasicLSTMCell(units), tf.nn.embedding_lookup(table, chars), dtype=tf.float32, scope="rnn")
    loss = tf.losses.sparse_softmax_cross_entropy(after, tf.layers.dense(h, letters, name="logits"))
    adam = tf.train.AdamOptimizer(tf.train.cosine_decay(0.005, step, STEPS, 0.05))
    grads, variables = zip(*adam.compute_gradients(loss))
    train = adam.apply_gradients(zip(tf.clip_by_global_norm(grads, 1.0)[0], variables), step)
    text = R.randint(0, letters, (8, time + 1)).astype(np.int32)
    return train, loss, {"chars:0": text[:, :-1], "next:0": text[:, 1:]}


def curve(s, init, train, loss, feeds):
    s.run(init)
    return [s.run([train, loss], feeds)[1] for _ in range(STEPS)]


CASES = {digits: ("--dir", "Adam"), trainer: ("--checkpoint_dir", "Adagrad"), word_embeddings: ("--dir", "Adagrad"), char_lstm: ("--dir", "Adam")}


@pytest.mark.parametrize("model", CASES, ids=lambda m: m.__name__)
def test_same_loss_curve(shared, tmp_path, model):
    where, train_op = CASES[model]
    p = subprocess.run([EXAMPLES / model.__name__, f"{where}={tmp_path}", f"--steps={STEPS}"], capture_output=True, text=True, env=ENV, timeout=120, cwd=TOP)
    assert p.returncode == 0, p.stderr
    with tf.Graph().as_default() as ours:  # what the program built, from its checkpoint
        tf.train.import_meta_graph(f"{tmp_path}/model.ckpt-{STEPS}.meta")
        sizes = {v.op.name: v.shape.as_list() for v in tf.global_variables()}
        loss = tf.get_collection("losses")[0] if tf.get_collection("losses") else ours.get_tensor_by_name("loss:0")
        c_side = (tf.global_variables_initializer(), ours.get_operation_by_name(train_op), loss)
    with tf.Graph().as_default(), tf.variable_scope("", use_resource=True):
        tf.set_random_seed(1)
        train, loss, feeds = model(sizes)
        assert sizes == {v.op.name: v.shape.as_list() for v in tf.global_variables()}  # slots too
        with tf.Session() as s:
            theirs = curve(s, tf.global_variables_initializer(), train, loss, feeds)
    assert theirs[-1] < theirs[0]
    with tf.Session(shared.target(), graph=ours) as s:
        np.testing.assert_allclose(curve(s, *c_side, feeds), theirs, rtol=1e-4)
