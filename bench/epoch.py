#!/usr/bin/env python3
"""One epoch of MNIST's size: the C trainer against TensorFlow's, each a process of its own, in turns. Needs TensorFlow (tools/venv).

    bench/epoch.py [mlp|cnn] [--examples 60000] [--batch 100] [--turns 3]

Same model, same files, Adam, shuffled mini-batches that are fed, all cores, graph mode (tf.compat.v1). Each side reads the files as its users do: TensorFlow's
program loads them with numpy, the C program leaves the data where it is (trn_arrays_open). Prints both sides and the ratios."""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent


def make_data(folder, n):
    """Bytes, as MNIST has them. A thousand images over and over: what is measured is the training."""
    import numpy as np

    y = np.arange(n, dtype=np.int64) % 10
    some = np.random.default_rng(1).integers(0, 128, (1000, 784), dtype=np.uint8) + ((np.arange(784) % 10 == y[:1000, None]) * 77).astype(np.uint8)
    np.save(f"{folder}/x.npy", np.resize(some, (n, 784)))
    np.save(f"{folder}/y.npy", y)


def tensorflow_side(model, folder, batch):
    import time

    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import numpy as np
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    x, y = np.load(f"{folder}/x.npy"), np.load(f"{folder}/y.npy")
    n = len(y)
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
        order = np.random.default_rng(1).permutation(n)
        # A callable is the quickest way that a session has.
        step = s._tf_sess().make_callable([loss, train], feed_list=[px, py])
        for i in range(0, n, batch):
            rows = order[i : i + batch]
            value = step(x[rows], y[rows])[0]
            if i == 0:
                stat = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
                first = time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / os.sysconf("SC_CLK_TCK")
                begin, cpu = time.monotonic(), time.process_time()
        took, cpu = time.monotonic() - begin, time.process_time() - cpu
    print(json.dumps({"first_step_s": first, "steps": (n + batch - 1) // batch, "epoch_s": took, "cpu_s": cpu, "loss": float(value),
                      "rss_mb": int(re.search(r"VmHWM:\s*(\d+)", open("/proc/self/status").read())[1]) / 1024}))


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("model", nargs="?", default="mlp", choices=["mlp", "cnn"])
    ap.add_argument("--examples", type=int, default=60000)
    ap.add_argument("--batch", type=int, default=100)
    ap.add_argument("--turns", type=int, default=3)
    ap.add_argument("--tensorflow", metavar="FOLDER", help="TensorFlow's side alone, with the files of this folder")
    a = ap.parse_args()
    if a.tensorflow:
        return tensorflow_side(a.model, a.tensorflow, a.batch)
    with tempfile.TemporaryDirectory() as folder:
        make_data(folder, a.examples)
        sides = {
            "tensorflow": [sys.executable, __file__, a.model, f"--tensorflow={folder}", f"--batch={a.batch}"],
            "trainera": [str(TOP / "build/bench/epoch"), a.model, f"{folder}/x.npy", f"{folder}/y.npy", str(a.batch)],
        }
        got = {k: [] for k in sides}
        for _ in range(a.turns):
            for k, cmd in sides.items():
                got[k].append(json.loads(subprocess.run(cmd, check=True, capture_output=True, text=True).stdout.splitlines()[-1]))
    mid = {k: {f: statistics.median(r[f] for r in v) for f in v[0]} for k, v in got.items()}
    ratio = {f: mid["tensorflow"][f] / mid["trainera"][f] for f in ("first_step_s", "epoch_s", "cpu_s", "rss_mb")}
    print(json.dumps({"model": a.model, **mid, "ratio": ratio}, indent=1))


main()
