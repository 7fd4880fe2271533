"""What the programs of this folder share: where they run (flags or a test's cluster), the step loop, and what they report.

A program is a module with a function `program(run, **options)` that builds a graph, trains it and returns a dict:

    loss     the loss of every step, before that step's update
    values   (optional) anything else that must come out the same: arrays, by name
    …        whatever its test looks at beside these

and `VARIANTS`, options by name. `python NAME.py --target grpc://HOST:PORT --ps_hosts … --worker_hosts …` trains the first variant, or the
one named by --variant, on that cluster; without flags inside the client's process.
"""
import argparse
import contextlib
import os
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

tf.logging.set_verbosity(tf.logging.ERROR)
tf.disable_v2_behavior()

SEED = 20


class Run:
    """Where and how long a program runs. targets[i] is the master that worker i's client talks to; `tasks` are the workers whose clients are in this process."""

    def __init__(self, targets=("",), ps=0, steps=40, folder=None, tasks=(0,)):
        self.targets, self.ps, self.steps, self.tasks, self.task = list(targets), ps, steps, tasks, tasks[0]
        self.folder = folder or tempfile.mkdtemp(prefix="program-")

    @property
    def target(self):
        return self.targets[self.task]

    def worker_device(self, task=None):
        return f"/job:worker/task:{self.task if task is None else task}" if self.ps else ""

    def device(self, task=None, **kw):
        """Variables on the ps in turn, everything else on the worker."""
        if not self.ps:
            return contextlib.nullcontext()
        return tf.device(tf.train.replica_device_setter(ps_tasks=self.ps, worker_device=self.worker_device(task), **kw))

    def config(self, **kw):
        return tf.ConfigProto(operation_timeout_in_ms=60000, **kw)

    def session(self, **kw):
        return tf.Session(self.target, config=self.config(**kw))

    def train(self, loss, train_op, feed=None, values=None, each=None, start=None, steps=None):
        """The plain loop: initialise, `steps` steps with feed(step), and `values` fetched at the end. `each` is fetched with every step."""
        out = {"loss": [], "values": {}}
        rows = {k: [] for k in each or {}}
        with self.session() as sess:
            sess.run([tf.global_variables_initializer(), tf.local_variables_initializer(), tf.tables_initializer()])
            if start:
                start(sess)
            for step in range(steps or self.steps):
                got = sess.run([loss, each or {}, train_op], feed(step) if feed else None)
                out["loss"].append(float(got[0]))
                for k in rows:
                    rows[k].append(got[1][k])
            if values:
                out["values"].update(sess.run(values, feed(0) if feed else None))
        out["values"].update({k: np.array(v, object if isinstance(v[0], bytes) else None) for k, v in rows.items()})
        return out


def minimize(loss, rate=0.1, **kw):
    return tf.train.GradientDescentOptimizer(rate).minimize(loss, **kw)


def digits(n=64, side=8, classes=10, seed=0):
    """Images that can be told apart: a pattern for every class, and noise. (images [n, side, side, 1], labels [n])"""
    rng = np.random.RandomState(seed)
    patterns = rng.rand(classes, side, side, 1)
    labels = rng.randint(0, classes, n)
    return (patterns[labels] + 0.3 * rng.randn(n, side, side, 1)).astype(np.float32), labels.astype(np.int32)


def batches(arrays, size=32):
    """step -> that step's slice of every array, round and round."""
    n = len(arrays[0])

    def at(step):
        rows = np.arange(step * size, (step + 1) * size) % n
        return [a[rows] for a in arrays]
    return at


def feeder(placeholders, arrays, size=32):
    at = batches(arrays, size)
    return lambda step: dict(zip(placeholders, at(step)))


def run(module, variant, where):
    """One variant in a graph of its own."""
    with tf.Graph().as_default():
        tf.set_random_seed(SEED)
        return module.program(where, **module.VARIANTS[variant])


def main():
    module = sys.modules["__main__"]
    ap = argparse.ArgumentParser(description=module.__doc__)
    ap.add_argument("--target", help="master, grpc://HOST:PORT; default: this task of --worker_hosts, or no cluster at all")
    ap.add_argument("--ps_hosts", default="", help="HOST:PORT,…")
    ap.add_argument("--worker_hosts", default="", help="HOST:PORT,…")
    ap.add_argument("--task_index", type=int, default=0)
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--variant", choices=list(module.VARIANTS), default=next(iter(module.VARIANTS)))
    a = ap.parse_args()
    ps, workers = ([h for h in x.split(",") if h] for x in (a.ps_hosts, a.worker_hosts))
    targets = ["grpc://" + h for h in workers] or [""]
    if a.target:
        targets[a.task_index:a.task_index + 1] = [a.target]
    got = run(module, a.variant, Run(targets, len(ps), a.steps, tasks=[a.task_index]))
    for step, loss in enumerate(got["loss"]):
        print(f"step {step} loss {loss:.6f}")
    for k, v in got.get("values", {}).items():
        print(k, np.asarray(v).tolist() if np.size(v) < 40 else f"{np.shape(v)}")
