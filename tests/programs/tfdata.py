"""Input from tf.data: initializable, reinitializable, feedable and one-shot iterators over the usual chains; the pipeline runs on the worker."""
import os

from trainer import main, np, tf

VARIANTS = {k: {"kind": k} for k in ("chain", "epochs", "records", "switch", "handles", "one-shot", "text", "padded")}
QUICK = {"chain", "records", "handles"}
D = tf.data.Dataset


def rows(n=200):
    rng = np.random.RandomState(12)
    xs = rng.randn(n, 4).astype(np.float32)
    return xs, np.tanh(xs @ [1.0, -1.0, 0.5, 2.0]).astype(np.float32)


def records(run):
    xs, ys = rows()
    names = []
    for i in range(4):
        names.append(os.path.join(run.folder, f"data-{i}.tfrecord"))
        with tf.io.TFRecordWriter(names[-1], "GZIP" if i == 9 else "") as f:
            for x, y in zip(xs[i::4], ys[i::4]):
                feature = {k: tf.train.Feature(float_list=tf.train.FloatList(value=np.atleast_1d(v))) for k, v in (("x", x), ("y", y))}
                f.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    return names


def parse(serialized):
    got = tf.parse_example(serialized, {"x": tf.FixedLenFeature([4], tf.float32), "y": tf.FixedLenFeature([], tf.float32)})
    return got["x"], got["y"]


def text(run):
    name = os.path.join(run.folder, "data.txt")
    with open(name, "w") as f:
        f.write("# a comment\n" + "".join(f"{a:.4f} {b:.4f} {c:.4f} {d:.4f} {y:.4f}\n" for (a, b, c, d), y in zip(*rows())))

    def split(line):
        v = tf.string_to_number(tf.string_split([line], " ").values)
        return v[:4], v[4]
    return tf.data.TextLineDataset(name).skip(1).filter(lambda s: tf.not_equal(tf.strings.substr(s, 0, 1), "#")).map(split)


def padded():
    """Sequences of differing lengths; what is learned is their sum."""
    def one(n):
        x = tf.cos(tf.cast(tf.range(n % 5 + 1) * n, tf.float32))
        return x, tf.reduce_sum(x)
    d = D.range(200).map(one, num_parallel_calls=2).padded_batch(20, ([4 + 1], []))
    return d.map(lambda x, y: (x[:, :4] + x[:, 4:], y))


def program(run, kind):
    def start(sess):
        for op in inits:
            sess.run(op)
    inits, feed = [], None
    with run.device():
        if kind in ("chain", "epochs"):
            xs, ys = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None])
            d = D.from_tensor_slices((xs, ys)).map(lambda x, y: (x * 2.0, y + 0.1), num_parallel_calls=2)
            d = d.shuffle(50, seed=7).batch(20, drop_remainder=True)
            d = d.repeat().prefetch(2) if kind == "chain" else d.repeat(2)
            it = tf.data.make_initializable_iterator(d)
            x, y = it.get_next()
        elif kind == "records":
            d = D.list_files(os.path.join(os.path.dirname(records(run)[0]), "data-*.tfrecord"), shuffle=False)
            d = d.interleave(tf.data.TFRecordDataset, cycle_length=2, block_length=3).shuffle(64, seed=8).repeat().batch(20).map(parse).prefetch(1)
            it = tf.data.make_initializable_iterator(d)
            x, y = it.get_next()
            inits.append(it.initializer)
        elif kind in ("switch", "handles"):
            a = D.from_tensor_slices(rows()).repeat().batch(20)
            b = D.zip((D.range(1000).map(lambda i: tf.sin(tf.cast([i, i + 1, i + 2, i + 3], tf.float32))), D.from_tensors(0.5).repeat())).batch(20)
            if kind == "switch":
                it = tf.data.Iterator.from_structure(tf.data.get_output_types(a), tf.data.get_output_shapes(a))
                inits += [it.make_initializer(b), it.make_initializer(a)]
            else:
                ia, ib = tf.data.make_one_shot_iterator(a), tf.data.make_initializable_iterator(b)
                inits.append(ib.initializer)
                ha, hb = ia.string_handle(), ib.string_handle()
                handle = tf.placeholder(tf.string, [])
                it = tf.data.Iterator.from_string_handle(handle, tf.data.get_output_types(a), tf.data.get_output_shapes(a))
            x, y = it.get_next()
        elif kind == "one-shot":
            d = D.from_tensor_slices(rows()).concatenate(D.from_tensor_slices(rows(30))).shard(2, 0).window(20, drop_remainder=True)
            d = d.flat_map(lambda a, b: D.zip((a.batch(20), b.batch(20)))).cache().repeat()
            x, y = tf.data.make_one_shot_iterator(d).get_next()
        else:
            d = padded().repeat() if kind == "padded" else text(run).shuffle(40, seed=2).batch(20, drop_remainder=True).repeat()
            it = tf.data.make_initializable_iterator(d)
            x, y = it.get_next()
            inits.append(it.initializer)
        x = tf.reshape(x, [-1, 4])
        loss = tf.reduce_mean(tf.squared_difference(tf.tanh(tf.layers.dense(x, 1))[:, 0], y))
        train = tf.train.AdamOptimizer(0.05).minimize(loss)
        mean = tf.reduce_mean(x)
    if kind == "handles":
        handles = []

        def start(sess):  # noqa: F811
            sess.run(inits)
            handles.extend(sess.run([ha, hb]))

        def feed(step):
            return {handle: handles[step % 5 == 4]}
    if kind in ("chain", "epochs"):
        def start(sess):  # noqa: F811
            sess.run(it.initializer, dict(zip((xs, ys), rows())))
    if kind == "epochs":
        out = {"loss": [], "values": {}}
        with run.session() as sess:
            sess.run(tf.global_variables_initializer())
            for _ in range(2):
                start(sess)
                try:
                    while True:
                        out["loss"].append(sess.run([loss, train])[0])
                except tf.errors.OutOfRangeError as e:
                    out["values"].setdefault("ends", []).append(len(out["loss"]))
                    assert "End of sequence" in str(e)
        return out
    return run.train(loss, train, feed, each={"mean": mean}, start=start)


if __name__ == "__main__":
    main()
