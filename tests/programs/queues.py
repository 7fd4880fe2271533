"""Input from queues: producers, batch and shuffle_batch, files read by readers; threads under a Coordinator. The queues live on the worker."""
import os

from trainer import main, np, tf

VARIANTS = {"batch": {}, "shuffle": {"kind": "shuffle"}, "csv": {"kind": "csv"}, "records": {"kind": "records"}, "buckets": {"kind": "join"},
            "epochs": {"kind": "epochs"}}
QUICK = {"batch", "shuffle", "csv"}
NOISY = {"shuffle", "buckets"}


def rows():
    rng = np.random.RandomState(11)
    xs = rng.randn(200, 4).astype(np.float32)
    return xs, (xs @ [1.0, -1.0, 0.5, 2.0] + 0.05 * rng.randn(200)).astype(np.float32)


def read(run, kind):
    """Files that the worker task reads itself, as on a shared disk."""
    xs, ys = rows()
    names = [os.path.join(run.folder, f"{kind}-{i}") for i in range(2)]
    for i, name in enumerate(names):
        part = slice(i * 100, (i + 1) * 100)
        if kind == "csv":
            with open(name, "w") as f:
                f.write("a,b,c,d,y\n" + "".join(",".join(f"{v:.5f}" for v in (*x, y)) + "\n" for x, y in zip(xs[part], ys[part])))
        else:
            with tf.io.TFRecordWriter(name) as f:
                for x, y in zip(xs[part], ys[part]):
                    feature = {k: tf.train.Feature(float_list=tf.train.FloatList(value=np.atleast_1d(v))) for k, v in (("x", x), ("y", y))}
                    f.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    names = tf.train.string_input_producer(names, shuffle=False)
    if kind == "csv":
        _, line = tf.TextLineReader(skip_header_lines=1).read(names)
        *x, y = tf.decode_csv(line, [[0.0]] * 5)
        return tf.stack(x), y
    _, one = tf.TFRecordReader().read(names)
    got = tf.parse_single_example(one, {"x": tf.FixedLenFeature([4], tf.float32), "y": tf.FixedLenFeature([], tf.float32)})
    return got["x"], got["y"]


def program(run, kind="batch"):
    xs, ys = rows()
    with run.device():
        if kind in ("csv", "records"):
            x, y = tf.train.batch(read(run, kind), 20, num_threads=1, capacity=64)
        elif kind == "shuffle":
            one = tf.train.slice_input_producer([xs, ys], seed=3)
            x, y = tf.train.shuffle_batch(one, 20, capacity=120, min_after_dequeue=60, num_threads=2, seed=4)
        elif kind == "join":
            one = [tf.train.slice_input_producer([xs, ys], seed=s) for s in (5, 6)]
            x, y = tf.train.batch_join(one, 20, capacity=64)
        else:
            one = tf.train.slice_input_producer([xs, ys], shuffle=False, num_epochs=2 if kind == "epochs" else None)
            x, y = tf.train.batch(one, 30, capacity=64, allow_smaller_final_batch=kind == "epochs")
        w = tf.get_variable("w", [4, 1])
        loss = tf.reduce_mean(tf.squared_difference(tf.matmul(x, w)[:, 0], y))
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    out = {"loss": [], "values": {}}
    with run.session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess, coord)
        sizes = []
        try:
            while not coord.should_stop() and len(out["loss"]) < run.steps:
                got = sess.run([loss, tf.shape(x)[0], train])
                out["loss"].append(float(got[0]))
                sizes.append(got[1])
        except tf.errors.OutOfRangeError:  # the last epoch is over
            coord.request_stop()
        out["values"].update(sizes=np.array(sizes))
        if kind not in ("shuffle", "join"):
            out["values"]["w"] = sess.run(w)
        coord.request_stop()
        coord.join(threads, stop_grace_period_secs=20)
    return out


if __name__ == "__main__":
    main()
