#!/usr/bin/env python3
"""One epoch of MNIST's size: the C trainer against TensorFlow's, each a process of its own, in turns. Needs TensorFlow (tools/venv).

    bench/epoch.py [mlp|cnn] [--examples 60000] [--batch 100] [--turns 3]

Same model, same data, Adam, mini-batches fed from arrays in memory, all cores, graph mode (tf.compat.v1). Prints both sides and the ratios."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent


def tensorflow_side(model, n, batch):
    import resource
    import time

    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import numpy as np
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    rng = np.random.default_rng(1)
    y = np.arange(n, dtype=np.int64) % 10
    x = np.empty((n, 784), np.uint8)
    some = rng.integers(0, 128, (1000, 784), dtype=np.uint8) + ((np.arange(784) % 10 == y[:1000, None]) * 77).astype(np.uint8)
    for i in range(0, n, 1000):
        x[i : i + 1000] = some[: n - i]
    tf.set_random_seed(1)
    px, py = tf.placeholder(tf.uint8, [None, 784]), tf.placeholder(tf.int64, [None])
    pixels = tf.cast(px, tf.float32) * (1 / 255)
    if model == "mlp":
        h = tf.layers.dense(tf.layers.dense(pixels, 256, tf.nn.relu), 128, tf.nn.relu)
    else:
        h = tf.layers.conv2d(tf.reshape(pixels, [-1, 28, 28, 1]), 16, 5, padding="same", activation=tf.nn.relu)
        h = tf.layers.conv2d(tf.layers.max_pooling2d(h, 2, 2), 32, 5, padding="same", activation=tf.nn.relu)
        h = tf.layers.dense(tf.layers.flatten(tf.layers.max_pooling2d(h, 2, 2)), 64, tf.nn.relu)
    loss = tf.losses.sparse_softmax_cross_entropy(py, tf.layers.dense(h, 10))
    train = tf.train.AdamOptimizer(0.001).minimize(loss, tf.train.get_or_create_global_step())
    with tf.train.MonitoredTrainingSession() as s:
        order = rng.permutation(n)
        # A callable is the quickest way that a session has.
        step = s._tf_sess().make_callable([loss, train], feed_list=[px, py])
        for i in range(0, n, batch):
            rows = order[i : i + batch]
            value = step(x[rows], y[rows])[0]
            if i == 0:
                stat = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
                first = time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / os.sysconf("SC_CLK_TCK")
                begin = time.monotonic()
        took = time.monotonic() - begin
    print(json.dumps({"first_step_s": first, "steps": (n + batch - 1) // batch, "epoch_s": took, "loss": float(value),
                      "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "data_mb": n * 792 / 1048576}))


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("model", nargs="?", default="mlp", choices=["mlp", "cnn"])
    ap.add_argument("--examples", type=int, default=60000)
    ap.add_argument("--batch", type=int, default=100)
    ap.add_argument("--turns", type=int, default=3)
    ap.add_argument("--side", choices=["tensorflow"])
    a = ap.parse_args()
    if a.side:
        return tensorflow_side(a.model, a.examples, a.batch)
    sides = {
        "tensorflow": [sys.executable, __file__, a.model, "--side=tensorflow", f"--examples={a.examples}", f"--batch={a.batch}"],
        "trainera": [str(TOP / "build/bench/epoch"), a.model, str(a.examples), str(a.batch)],
    }
    got = {k: [] for k in sides}
    for _ in range(a.turns):
        for k, cmd in sides.items():
            got[k].append(json.loads(subprocess.run(cmd, check=True, capture_output=True, text=True).stdout.splitlines()[-1]))
    mid = {k: {f: statistics.median(r[f] for r in v) for f in v[0]} for k, v in got.items()}
    ratio = {f: mid["tensorflow"][f] / mid["trainera"][f] for f in ("first_step_s", "epoch_s", "rss_mb")}
    ratio["rss_without_data"] = (mid["tensorflow"]["rss_mb"] - mid["tensorflow"]["data_mb"]) / (mid["trainera"]["rss_mb"] - mid["trainera"]["data_mb"])
    print(json.dumps({"model": a.model, **mid, "ratio": ratio}, indent=1))


main()
