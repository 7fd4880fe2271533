"""Eager TensorFlow 2 without a strategy: a program that connects to a cluster and puts ops, variables and functions on its ps.

connected.py OUT.json CLUSTER_JSON : first with TensorFlow's streaming of ops, then without (TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE). PS_HERE in the environment:
the ps are TensorFlow's, in this process. What each run gives goes to OUT.json: a list of {what: result}."""
import gc
import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import tensorflow as tf  # noqa: E402
from tensorflow.python.distribute import packed_distributed_variable  # noqa: E402
from tensorflow.python.eager import context, executor  # noqa: E402
from tensorflow.python.framework import ops  # noqa: E402
from tensorflow.python.ops import resource_variable_ops  # noqa: E402

SERVERS = []
PS = ["/job:ps/replica:0/task:0/device:CPU:0", "/job:ps/replica:0/task:1/device:CPU:0"]


def chains():
    """A chain that nobody waits for, tensors that go from task to task, strings, empties, megabytes."""
    with tf.device(PS[0]):
        x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        for _ in range(100):
            x = x * 0.99 + 0.01
        s = tf.strings.join([tf.constant(["a", ""]), tf.constant(["b", "c"])])
        e = tf.zeros([0, 3])
        big = tf.random.stateless_uniform([1 << 20], [1, 2])
    with tf.device(PS[1]):
        y = tf.matmul(x, x) + tf.reduce_sum(big)
        parts = tf.split(tf.range(12.0), [2, 4, 6])
        n = tf.shape(e)
    local = tf.reduce_mean(y)
    return [x.numpy().tolist(), y.numpy().tolist(), [p.decode() for p in s.numpy()], n.numpy().tolist(), [p.numpy().tolist() for p in parts], float(local), y.device, x.device]


def variables():
    """On both tasks, updated from here, from there, and by a function."""
    made = []
    for d in PS:
        with tf.device(d):
            made.append(tf.Variable(tf.reshape(tf.range(6.0), [2, 3])))
    v, w = made

    @tf.function
    def both():
        v.assign_add(tf.ones_like(v))
        return w.assign_sub(v.read_value() * 0.5)

    for i in range(30):
        v.assign_add(tf.fill([2, 3], float(i)))
        if i % 10 == 0:
            context.async_wait()  # functions over several tasks do not queue behind streamed ops, in TensorFlow neither
            both()
    v.scatter_sub(tf.IndexedSlices(tf.ones([1, 3]), tf.constant([1])))
    result = [v.numpy().tolist(), w.numpy().tolist(), v.device]
    del v, w, made, both
    gc.collect()
    return result


def functions():
    """A whole function on a task: a loop, a condition, a gradient, a table, a variable of its own."""
    with tf.device(PS[0]):
        v = tf.Variable(2.0)
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
        table.insert(tf.constant(["x", "y"]), tf.constant([1, 2], tf.int64))

        @tf.function
        def steps(n):
            total = tf.constant(0.0)
            for i in tf.range(n):
                if i % 2 == 0:
                    total += v * tf.cast(i, tf.float32)
                else:
                    total -= 1.0
            return total, v.assign_add(total)

        @tf.function
        def slope(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(tf.sin(x) * v ** 2)
            return tape.gradient(y, x)

        a = [float(t) for n in (3, 8, 0) for t in steps(tf.constant(n))]
        b = slope(tf.constant([0.5, 1.5]))
        c = table.lookup(tf.constant(["y", "z"]))
    return [a, b.numpy().tolist(), c.numpy().tolist(), int(table.size())]


def outcome(f):
    try:
        return f()
    except tf.errors.OpError as e:
        return [type(e).__name__, e.error_code]


def errors():
    """What fails tells so here, as the same class; what follows runs."""
    def bad_reshape():
        with tf.device(PS[0]):
            return tf.reshape(tf.zeros([4]), tf.constant([3]) + 0).numpy().tolist()

    def bad_index():
        with tf.device(PS[0]):
            good = tf.constant([1.0]) + 1
            bad = tf.raw_ops.GatherV2(params=tf.zeros([3]) + 1, indices=tf.constant([7]) + 0, axis=0)
            return (good + bad).numpy().tolist()

    def bad_function():
        @tf.function
        def f(x):
            tf.debugging.assert_less(x, 3)
            return x

        with tf.device(PS[1]):
            return f(tf.constant([5])).numpy().tolist()

    got = []
    for f in (bad_reshape, bad_index, bad_function):
        got.append(outcome(f))
        try:
            context.async_wait()  # what is left of the failed stream
        except tf.errors.OpError:
            context.async_clear_error()
        with tf.device(PS[0]):
            got.append(float(tf.constant(1.0) + 2.0))
    return got


def asynchronous():
    """The client's own executor runs ahead too; waiting for it waits for the tasks."""
    ahead = executor.new_executor(enable_async=True)
    with context.executor_scope(ahead):
        with tf.device(PS[0]):
            v = tf.Variable(0.0)
            for _ in range(50):
                v.assign_add(1.0)
            x = v + 1.0
        ahead.wait()
        return [float(x), float(v)]


def packed():
    """Bundles of one tensor or variable a task, given to functions as one: each device's own is meant, wherever the function runs."""
    made, given = [], []
    for i, d in enumerate(PS):
        with tf.device(d):
            made.append(resource_variable_ops.ResourceVariable(tf.fill([2], 1.0 + i)))
            given.append(tf.fill([2], 10.0 + i) * 2.0)
    given.append(tf.constant([1.0, 2.0]))
    variable, tensor, mixed = ops.pack_eager_tensors([v.handle for v in made]), ops.pack_eager_tensors(given[:2]), ops.pack_eager_tensors(given)

    def read(i=None):
        with tf.device(PS[i] if i is not None else None):
            x = resource_variable_ops.read_variable_op(variable, dtype=tf.float32)
        x.set_shape([2])
        return x

    @tf.function
    def both():
        return read(0) + read(1) * 10.0

    @tf.function
    def train(t, k):
        for d in range(2):
            with tf.device(PS[d]):
                tf.raw_ops.AssignAddVariableOp(resource=variable, value=t * tf.cast(k, tf.float32))
        total = tf.zeros([2])
        for _ in tf.range(k):
            total += read(0) - 2.0 * read(1)
        if k % 2 == 0:
            total += read(0)
        else:
            total -= read(1)
        return total, read(0), read(1)

    @tf.function
    def unplaced(t):
        return read() * 1.0, t + 0.0

    @tf.function
    def elsewhere(t):
        return t * 3.0

    got = [variable.device.split("/")[-1]]
    for where in (*PS, None):  # the last: divided by the client itself
        with tf.device(where):
            got += [outcome(lambda f=f: [x.numpy().tolist() for x in tf.nest.flatten(f())])
                    for f in (both, lambda: train(tensor, tf.constant(3)), lambda: unplaced(tensor), lambda: elsewhere(mixed), lambda: elsewhere(ops.pack_eager_tensors(given[:1])))]
    for where in PS:
        with tf.device(where):
            got += [outcome(lambda: tf.negative(tensor).numpy().tolist()), outcome(lambda: tf.raw_ops.ReadVariableOp(resource=variable, dtype=tf.float32).numpy().tolist())[:1]]
    one = packed_distributed_variable.PackedDistributedVariable(made)

    @tf.function
    def replicas():
        for d in PS:
            with tf.device(d):
                one.assign_add(tf.ones([2]))
        with tf.device(PS[1]):
            return one.read_value()

    with tf.device(PS[0]):
        got += [replicas().numpy().tolist()]
    got += [v.numpy().tolist() for v in made]
    del variable, tensor, mixed, one, made, given
    gc.collect()
    return got


def lacking():
    """A part of a function, for a ps, with an op that TensorFlow's ps has and ours has not. What comes after runs."""
    @tf.function
    def f(x):
        with tf.device(PS[1]):
            most = tf.raw_ops.QuantizedRelu(features=tf.bitcast(x, tf.quint8), min_features=0.0, max_features=2.0).max_activations + 1
        return most * 2

    x = tf.constant([1, 2, 3], tf.uint8)
    got = []
    for _ in range(2):
        try:
            got.append(int(f(x)))
        except tf.errors.OpError as e:
            got.append([type(e).__name__, e.error_code, e.message])
    return got


def main(out, spec):
    cluster = tf.train.ClusterSpec(spec)
    if os.environ.get("PS_HERE"):
        SERVERS.extend(tf.distribute.Server(cluster, job_name="ps", task_index=i) for i in range(len(spec["ps"])))
    tf.config.experimental_connect_to_cluster(cluster, job_name="client", task_index=0, protocol="grpc")
    results = []
    for streaming in (True, False):
        os.environ["TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE"] = str(streaming)
        results.append({f.__name__: f() for f in (chains, variables, functions, errors, lacking, asynchronous, packed)})
        context.async_wait()
    out.write_text(json.dumps(results))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]))
