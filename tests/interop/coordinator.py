"""A TensorFlow 2 coordinator as a program of its own (TensorFlow keeps one per process): coordinator.py CLUSTER_JSON OUT.json [steps]

A custom loop: a linear model on the ps, steps scheduled on the workers, a sharded embedding with sparse updates, a checkpoint saved and restored by the ps.
What it ends with goes to OUT.json, for comparison with the same on TensorFlow's own ps."""
import json
import os
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import tensorflow as tf  # noqa: E402


def main(spec, out, steps):
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(spec), rpc_layer="grpc", task_type="chief", task_id=0)
    shards = tf.distribute.experimental.partitioners.FixedShardsPartitioner(len(spec["ps"]))
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=shards)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        w = tf.Variable(tf.zeros([4, 1]), name="w")
        table = tf.Variable(tf.reshape(tf.range(40, dtype=tf.float32), [10, 4]) / 40, name="table")
        count = tf.Variable(0, dtype=tf.int64, name="count")

    @tf.function
    def step():
        ids = tf.constant([1, 3, 3, 9])
        with tf.GradientTape() as tape:
            x = tf.nn.embedding_lookup(table, ids)
            k = tf.concat([tf.identity(v) for v in w.variables], 0) if hasattr(w, "variables") else w
            loss = tf.reduce_mean((x @ k - tf.constant([[1.0], [2.0], [3.0], [4.0]])) ** 2)
        parts = (list(w.variables) if hasattr(w, "variables") else [w]) + (list(table.variables) if hasattr(table, "variables") else [table])
        for v, g in zip(parts, tape.gradient(loss, parts)):
            if isinstance(g, tf.IndexedSlices):
                v.scatter_sub(tf.IndexedSlices(0.05 * g.values, g.indices))
            else:
                v.assign_sub(0.05 * g)
        count.assign_add(1)
        return loss

    last = None
    for _ in range(steps):
        last = coordinator.schedule(step)
    coordinator.join()

    def value(v):
        return tf.concat([p.read_value() for p in v.variables], 0).numpy() if hasattr(v, "variables") else v.numpy()

    result = {"loss": float(last.fetch()), "w": value(w).tolist(), "table": value(table).tolist(), "count": int(count.numpy())}
    with tempfile.TemporaryDirectory() as folder:
        saved = tf.train.Checkpoint(w=w, table=table, count=count)
        path = saved.save(folder + "/model")
        count.assign(-1)
        for p in table.variables if hasattr(table, "variables") else [table]:
            p.assign(tf.zeros_like(p))
        saved.restore(path)
    result["restored"] = [value(table).tolist(), int(count.numpy())]
    with open(out, "w") as f:
        json.dump(result, f)
    sys.stdout.flush()
    os._exit(0)  # the coordinator's threads would complain about tasks that end before it


main(json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 20)
