"""Variables in pieces over the ps: rows and columns, several partitioners, saved as one and restored into another cut."""
import os

from trainer import feeder, main, np, tf

t = tf
PARTITIONERS = {
    "fixed": lambda: t.fixed_size_partitioner(3),
    "columns": lambda: t.fixed_size_partitioner(2, axis=1),
    "axis-size": lambda: t.variable_axis_size_partitioner(512),
    "min-max": lambda: t.min_max_variable_partitioner(max_partitions=4, min_slice_size=256),
}
VARIANTS = {f"{k}-{r}": {"partitioner": k, "resource": r == "resource"} for k in PARTITIONERS for r in ("ref", "resource")}
QUICK = {"fixed-ref", "columns-resource"}


def program(run, partitioner, resource=False):
    rng = np.random.RandomState(9)
    ids = rng.randint(0, 40, (256, 2)).astype(np.int64)
    ys = (ids.sum(1) % 7 < 3).astype(np.float32)
    with run.device():
        i, y = tf.placeholder(tf.int64, [None, 2]), tf.placeholder(tf.float32, [None])
        with tf.variable_scope("parts", partitioner=PARTITIONERS[partitioner](), use_resource=resource):
            table = tf.get_variable("table", [40, 16], initializer=tf.random_normal_initializer())
            w = tf.get_variable("w", [32, 8])
        if partitioner == "columns":  # lookups want rows
            rows = tf.gather(tf.convert_to_tensor(table), i)
        else:
            rows = tf.nn.embedding_lookup(table, i, partition_strategy="div")
        h = tf.nn.relu(tf.matmul(tf.reshape(rows, [-1, 32]), w))
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=tf.reduce_sum(h, 1) - 1.0))
        train = tf.train.AdagradOptimizer(0.1).minimize(loss)
        whole = tf.convert_to_tensor(table)
        saver = tf.train.Saver(sharded=True)
    out = run.train(loss, train, feeder([i, y], [ids, ys]), values={"table": whole, "w": tf.convert_to_tensor(w)})
    with run.session() as sess:  # the state outlives the session that made it, on a cluster
        if run.ps:
            path = saver.save(sess, os.path.join(run.folder, f"parts-{partitioner}-{resource}"))
            with tf.Graph().as_default():
                with run.device():
                    other = tf.get_variable("parts/table", [40, 16], use_resource=resource)  # in one piece
                    back = tf.train.Saver({"parts/table": other})
                with run.session() as again:
                    back.restore(again, path)
                    out["values"]["restored"] = again.run(other)
                np.testing.assert_array_equal(out["values"]["restored"], out["values"]["table"])
    return out


if __name__ == "__main__":
    main()
